"""Models of transformers and timm as workloads: refusals without any download, windows of rows, known losses."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from helpers.pictures.made import imagenet
from torch import nn

from workloads.adapters import packages, token_rows
from workloads.adapters.causal_lm import CausalLm
from workloads.adapters.timm_classifier import TimmClassifier
from workloads.data.fetching import DataError

COUNTS = {"train_examples": 20, "validation_examples": 3}
LM = {"name": "x", "dataset": "input_ids", "path": "rows", "context": 4, "model_type": "gpt2", **COUNTS}
TINY = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2}
TIMM = {"name": "x", "dataset": "cifar10", "model_name": "resnet18", **COUNTS}


@pytest.mark.parametrize(
    ("build", "changed", "said"),
    [
        (CausalLm, {"model_type": None}, "give one of workload.model_type and workload.checkpoint, but got None and N"),
        (CausalLm, {"checkpoint": "here"}, "give one of .*, but got 'gpt2' and 'here'"),
        (CausalLm, {"model_type": None, "checkpoint": "here", "dataset": "brown"}, "has a tokenizer of its own: token"),
        (CausalLm, {"path": None}, "dataset=input_ids needs workload.path"),
        (CausalLm, {"dataset": "browm"}, "browm"),
        (CausalLm, {"context": 0}, "workload.context must be a whole number of at least 1"),
        (TimmClassifier, {"model_name": "hf-hub:timm/resnet18"}, "would be downloaded; give its name alone"),
        (TimmClassifier, {"arguments": {"pretrained": True}}, "arguments.pretrained is given by workload.checkpoint"),
    ],
)
def test_arguments_are_refused(build, changed, said):
    with pytest.raises(ValueError, match=said):
        build(**(LM if build is CausalLm else TIMM) | changed)


def absent(name):
    raise ImportError(f"No module named {name!r}")


@pytest.mark.parametrize(
    ("workload", "cure"),
    [
        (CausalLm(**LM), "needs the package transformers, .*: pip install 'batch-size-study.adapters.'"),
        (TimmClassifier(**TIMM), "needs the package timm, .*: pip install --no-deps timm 'torchvision"),
    ],
)
def test_a_package_that_is_not_installed_is_named(workload, cure, monkeypatch):
    monkeypatch.setattr(packages, "importlib", SimpleNamespace(import_module=absent))
    with pytest.raises(DataError, match=cure):
        workload.model()


def test_nothing_is_downloaded(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="checkpoint must be a file or folder on this machine, but got 'gpt2', seen"):
        packages.require_local("workload.checkpoint", "gpt2")
    with pytest.raises(DataError, match=r"workload.path must be .*, but got 'rows'.*; nothing is downloaded"):
        CausalLm(**LM).splits(torch.device("cpu"))


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets", reason="the extra `adapters` is not installed")


def saved(datasets, folder, rows=60, parts=(), **columns):
    made = datasets.Dataset.from_dict({"input_ids": [[row, row, row] for row in range(rows)], **columns})
    held = datasets.DatasetDict(dict.fromkeys(parts, made)) if parts else made
    held.save_to_disk(folder)
    return str(folder)


def test_rows_become_windows(datasets, tmp_path):
    path = saved(datasets, tmp_path / "rows", attention_mask=[[1, 1, 0]] * 60, parts=token_rows.PARTS)
    (inputs, targets), *_ = found = token_rows.splits(path, 4, 20, 3, 0)
    assert [len(split[1]) for split in found] == [20, 3, 3]
    tokens = torch.arange(60).repeat_interleave(2)[:100].view(20, 5)  # the third of each row is masked
    assert torch.equal(inputs, tokens[:, :-1])
    assert torch.equal(targets, tokens[:, 1:])


def test_a_data_set_without_parts_is_divided_by_rows(datasets, tmp_path):
    path = saved(datasets, tmp_path / "rows")
    splits = token_rows.splits(path, 2, 50, 3, 0)
    rows = [set(split[0][:, 0].tolist()) for split in splits]
    assert [len(each) for each in rows] == [50, 3, 3]
    assert len(set.union(*rows)) == 56
    fewer = token_rows.splits(path, 2, 10, 3, 0)
    assert torch.equal(fewer.train[0], splits.train[0][:10])
    assert torch.equal(fewer.val[0], splits.val[0])
    assert not torch.equal(token_rows.splits(path, 2, 10, 3, 1).val[0], splits.val[0])


@pytest.mark.parametrize(
    ("made", "asked", "said"),
    [
        ({"parts": ("train", "test")}, (20, 3), "has the parts train, test, but no validation; make them with"),
        ({"rows": 19}, (20, 3), "has 19 rows; 20 are the fewest"),
        (
            {},
            (200, 3),
            "the part train of .* has 32 windows of 4 tokens and the next one, but 200 are asked for",
        ),
        ({"input_ids": None, "text": ["a"] * 60}, (20, 3), "must have a column input_ids, but has text; tokenize"),
    ],
)
def test_data_sets_that_do_not_do_are_named(datasets, tmp_path, made, asked, said):
    path = tmp_path / "rows"
    if "text" in made:
        datasets.Dataset.from_dict({"text": made["text"]}).save_to_disk(path)
    else:
        saved(datasets, path, **made)
    with pytest.raises(DataError, match=said):
        token_rows.splits(str(path), 4, *asked, 0)
    with pytest.raises(DataError, match="holds no data set that Hugging Face's save_to_disk wrote"):
        token_rows.splits(str(tmp_path), 4, *asked, 0)


@pytest.mark.slow  # the import of transformers takes seconds
def test_a_causal_model_by_configuration_and_from_a_folder(tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra `adapters` is not installed")
    workload = CausalLm(**LM, arguments=TINY)
    torch.manual_seed(0)
    model = workload.model().eval()
    tokens = torch.randint(50, (6, 5))
    outputs = model(tokens[:, :-1])
    assert outputs.shape == (6, 4, 50)
    labels = tokens[:, 1:]
    theirs = model.model(tokens, labels=tokens).loss
    torch.testing.assert_close(workload.loss(outputs, labels).mean(), theirs)
    model.model.save_pretrained(tmp_path / "held")
    loaded = CausalLm(**LM | {"model_type": None, "checkpoint": str(tmp_path / "held")}).model().eval()
    torch.testing.assert_close(loaded(tokens[:, :-1]), outputs)
    assert CausalLm(**LM | {"dataset": "brown", "path": None}).model().model.config.vocab_size == 257
    with pytest.raises(ValueError, match="gpt2 takes no argument 'n_emb'; did you mean 'n_embd'"):
        CausalLm(**LM, arguments={"n_emb": 3}).model()
    assert isinstance(model.model, transformers.GPT2LMHeadModel)


LACKING = {
    "names of a wrapper": ("GPT2LMHeadModel", "net.", {}, r"lacks 1[0-9] of .* lm_head.weight, but has net\.lm_head"),
    "another head": ("GPT2ForTokenClassification", "", {}, None),  # a language model ties its own
    "another model": ("BertModel", "", {}, r"of a BertLMHeadModel, but .* lacks . of .* cls.predictions.bias, but has"),
    "more layers": ("GPT2LMHeadModel", "", {"n_layer": 2}, r"lacks 12 of .* transformer.h.1.*; leave out arguments"),
    "other dropout": ("GPT2LMHeadModel", "", {"resid_pdrop": 0.0}, None),
}
"""What a checkpoint is: the class that saves it, what is put before its names, the arguments, and what is said."""


@pytest.mark.slow  # the import of transformers takes seconds
@pytest.mark.parametrize(("saving", "before", "arguments", "said"), LACKING.values(), ids=LACKING)
def test_a_checkpoint_holds_all_weights(tmp_path, saving, before, arguments, said):
    transformers = pytest.importorskip("transformers", reason="the extra `adapters` is not installed")
    build = getattr(transformers, saving)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = build(build.config_class(**({**sizes, "vocab_size": 50, "is_decoder": True} if "Bert" in saving else TINY)))
    named = {f"{before}{name}": weight.clone() for name, weight in model.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict=named)
    workload = CausalLm(**LM | {"model_type": None, "checkpoint": str(tmp_path), "arguments": arguments})
    with nullcontext() if said is None else pytest.raises(DataError, match=said):
        workload.model()


class Timm:
    """Stands for the package: what it is asked for."""

    def is_model(self, name):
        return name == "resnet18"

    def list_models(self):
        return ["resnet18", "vgg11"]

    def create_model(self, name, **asked):
        self.asked = asked
        return nn.Flatten()


def test_timm_is_asked_for_the_classes_and_channels_of_the_images(tmp_path, monkeypatch):
    stand_in = Timm()
    monkeypatch.setattr(packages, "importlib", SimpleNamespace(import_module=lambda name: stand_in))
    imagenet(tmp_path)
    folder = TIMM | {"dataset": "image_folder", "path": str(tmp_path), "image_size": 32}
    classes = TimmClassifier(**folder).classes
    TimmClassifier(**folder, arguments={"drop_rate": 0.1}).model()
    assert stand_in.asked == {"num_classes": classes, "in_chans": 3, "drop_rate": 0.1}
    weights = tmp_path / "weights.pth"
    with pytest.raises(DataError, match=r"weights.pth', seen from .*; nothing is downloaded"):
        TimmClassifier(**folder, checkpoint=str(weights)).model()
    weights.touch()
    TimmClassifier(**folder, checkpoint=str(weights)).model()
    assert stand_in.asked["pretrained_cfg_overlay"] == {"file": str(weights)}
    with pytest.raises(ValueError, match="timm has no model 'resnet17'; did you mean 'resnet18'"):
        TimmClassifier(**folder | {"model_name": "resnet17"}).model()

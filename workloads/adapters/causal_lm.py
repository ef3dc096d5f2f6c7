"""Causal language models of Hugging Face, by configuration or from a folder, on text or on rows of tokens.

Shapes: B examples in a batch, T tokens of context, V tokens of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from workloads.adapters import token_rows
from workloads.adapters.packages import package, require_local
from workloads.base import Splits
from workloads.data.fetching import DataError
from workloads.language.modelling import LanguageModelling
from workloads.suggest import suggest


@dataclass(frozen=True, kw_only=True)
class CausalLm(LanguageModelling):
    """Any `AutoModelForCausalLM` of the package transformers; nothing is downloaded.

    Arguments:
        dataset: as in `LanguageModelling`, or `input_ids` for a data set at `path` that `save_to_disk` wrote, whose
            rows hold tokens (`workloads.adapters.token_rows`).
        model_type: the name of an architecture, such as `gpt2` or `llama`; its weights are drawn for each trial.
        arguments: of its configuration, in place of the defaults. `vocab_size` is that of the tokenizer, and the
            numbers of special tokens are none, unless given; for `input_ids` give `vocab_size`.
        checkpoint: a folder that `save_pretrained` wrote, in place of `model_type`: every trial starts from its
            weights. Its text must be tokenized by its own tokenizer, as `input_ids`.
    """

    model_type: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None

    def require_dataset(self) -> None:
        if (self.model_type is None) == (self.checkpoint is None):
            raise ValueError(
                f"give one of workload.model_type and workload.checkpoint, but got {self.model_type!r} and "
                f"{self.checkpoint!r}."
            )
        if self.dataset != token_rows.COLUMN and self.checkpoint is not None:
            raise ValueError(
                f"workload.checkpoint={self.checkpoint} has a tokenizer of its own: tokenize the text with it, "
                "save_to_disk, and take workload.dataset=input_ids with workload.path."
            )
        if self.dataset != token_rows.COLUMN:
            super().require_dataset()
        elif self.path is None:
            raise ValueError("workload.dataset=input_ids needs workload.path, a folder that save_to_disk wrote.")

    def splits(self, device: torch.device) -> Splits:
        if self.dataset != token_rows.COLUMN:
            return super().splits(device)
        counts = self.train_examples, self.validation_examples
        return token_rows.splits(str(self.path), self.context, *counts, self.split_seed)

    def model(self) -> nn.Module:
        transformers = package("transformers")
        transformers.logging.set_verbosity_error()  # each trial makes a model
        transformers.logging.disable_progress_bar()
        auto = transformers.AutoModelForCausalLM
        if self.checkpoint is not None:
            return Logits(self._loaded(auto))
        usual = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        known = {} if self.dataset == token_rows.COLUMN else {"vocab_size": self.tokens}
        default = transformers.AutoConfig.for_model(self.model_type)
        for name in self.arguments:  # transformers keeps unknown ones without using them
            if not hasattr(default, name):
                raise ValueError(f"a {self.model_type} takes no argument {name!r}{suggest(name, default.to_dict())}")
        config = transformers.AutoConfig.for_model(self.model_type, **{**usual, **known, **self.arguments})
        return Logits(auto.from_config(config, dtype=torch.float32))

    def _loaded(self, auto: Any) -> nn.Module:
        """The model of the checkpoint. Raises DataError if it lacks weights, which transformers would draw."""
        require_local("workload.checkpoint", str(self.checkpoint), "config.json")
        where = {"local_files_only": True, "dtype": torch.float32, "output_loading_info": True}
        loaded: nn.Module
        loaded, told = auto.from_pretrained(self.checkpoint, **where, **self.arguments)
        if missing := sorted(told["missing_keys"]):
            unknown = "".join(f", but has {name}" for name in sorted(told["unexpected_keys"])[:1])
            raise DataError(
                f"workload.checkpoint must hold all weights of a {type(loaded).__name__}, but {self.checkpoint} lacks "
                f"{len(missing)} of {len(loaded.state_dict())}, such as {missing[0]}{unknown}; leave out arguments "
                "that add layers, and call save_pretrained of the whole model, not of a wrapper or a part of it."
            )
        return loaded


class Logits(nn.Module):
    """Tokens int64 [B, T] -> the logits of the next tokens [B, T, V], without a cache for generation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits

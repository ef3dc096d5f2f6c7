"""The model of one's own in docs/guide/language-models.md, as the page prints it."""

import pytest
import torch
import yaml
from house import doc_pages

from study.data.examples import splits_of
from workloads.user_code.importing import build, importable

FILES = doc_pages.named_blocks("docs/guide/language-models.md")


@pytest.mark.slow
def test_the_gpt_of_the_page_learns_a_text(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt.py").write_text(FILES["gpt.py"])
    (tmp_path / "notes").mkdir()
    for number in range(40):
        (tmp_path / f"notes/{number}.md").write_text("to be or not to be, that is the question. " * 20)
    importable(tmp_path)
    workload = build(yaml.safe_load(FILES["workload/gpt.yaml"])["workload"] | {"train_examples": 200})
    inputs, targets = splits_of(workload).train
    torch.manual_seed(0)
    model = workload.model()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for step in range(30):
        chosen = torch.arange(8) + 6 * step
        loss = workload.loss(model(inputs[chosen]), targets[chosen]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 5
    assert losses[-1] < 2
    model.eval()
    with torch.no_grad():
        seen, changed = model(inputs[:1]), inputs[:1].clone()
        changed[0, 40] = 0
        assert torch.allclose(model(changed)[0, :40], seen[0, :40], atol=1e-5)  # no look ahead

"""Words of other programs are answered with the form that works here, in one line, before any work."""

import re
import shutil
from pathlib import Path

import pytest
from helpers.fused import partly

from study.__main__ import main
from study.commands import EVERYDAY, FLAGS, STATUSES, VERBS, flags_of
from study.config.composed.choices import full_key

PUBLISHED = Path(__file__).parents[3] / "results/published/digits_beta2"
SETTINGS = "settings are key=value: give {} in place of {}."
TYPED = [
    # A verb
    ("swep", "unknown command 'swep'; did you mean 'sweep'?"),
    ("statsu results", "unknown command 'statsu'; did you mean 'status'?"),
    ("train", "unknown command 'train'; there are: "),
    ("--debug swep", "unknown command 'swep'; did you mean 'sweep'?"),
    (
        "workload=mlp_digits",
        "a command comes before its settings, such as `python -m study sweep workload=mlp_digits`.",
    ),
    ("-m optimizer=sgd,adam", "a command comes before its settings"),
    ("version", "unknown command 'version'; did you mean '--version'?"),
    ("help", "unknown command 'help'; did you mean '--help'?"),
    ("--versoin", "unknown option '--versoin'; did you mean '--version'?"),
    # Bytes that are no text in the encoding of the environment
    ("sweep results=\udcc3\udcbc", r"'results=\udcc3\udcbc' has bytes that are no text in utf-8, the encoding of this"),
    ("report \udcff", r"'\udcff' has bytes that are no text in utf-8, "),
    # A word that a command does not take
    ("list optimizer", "unknown kind 'optimizer'; did you mean 'optimizers'?"),
    ("list track", "unknown kind 'track'; did you mean 'trackers'?"),
    ("list foo", "unknown kind 'foo'; there are: batch_schedules, clusters, data, engines, "),
    ("data lst", "unknown action 'lst'; did you mean 'list'?"),
    ("completion fish", "unknown shell 'fish'; there are: bash, zsh."),
    ("schedule results --format megatorn", "unknown --format 'megatorn'; did you mean 'megatron'?"),
    # No value, or one of another kind
    ("report", "give results; python -m study report --help shows all arguments."),
    ("data", "give action, NAME; "),
    ("report results --width abc", "--width must be a number, but got 'abc'."),
    ("schedule results --batch-size 1.5", "--batch-size must be a whole number, but got '1.5'."),
    ("report results --goal", "--goal needs a value."),
    ("noise results --plan --json", "--json: not allowed with argument --plan."),
    ("import there here --trials 0", "--trials must be a whole number of at least 1, or all, but got 0."),
    ("import there here --trials abc", "--trials must be a whole number of at least 1, or all, but got abc."),
    # Flags in place of settings
    ("sweep -m optimizer=sgd,adam", "leave out -m: several values with commas are swept"),
    ("plan --multirun", "leave out --multirun: several values"),
    ("sweep --trials 5", SETTINGS.format("search.trials=5", "--trials 5")),
    ("sweep --trials=5", SETTINGS.format("search.trials=5", "--trials=5")),
    ("sweep --search.trials 5", SETTINGS.format("search.trials=5", "--search.trials 5")),
    ("sweep --batch-size 64 optimizer=sgd", SETTINGS.format("batch_size=64", "--batch-size 64")),
    ("sweep optimizer=sgd --lr 0.1", SETTINGS.format("search.space.learning_rate=0.1", "--lr 0.1")),
    ("plan --epochs 3", SETTINGS.format("budget.epochs=3", "--epochs 3")),
    ("sweep --optimizer --mix", SETTINGS.format("optimizer=VALUE", "--optimizer")),
    ("calibrate --workers 2", SETTINGS.format("engine.workers=2", "--workers 2")),
    ("sweep --conifg-dir mine", "unknown option --conifg-dir; did you mean '--config-dir'? Settings are key=value."),
    ("sweep --nope", "unknown option --nope"),
    ("sweep --trails 5", "unknown option --trails; did you mean search.trials=5? Settings are key=value."),
    ("sweep --optimzer=sgd", "unknown option --optimzer=sgd; did you mean optimizer=sgd? Settings are key=value."),
    # Options of verbs that have no settings
    ("status results --jsn", "unknown argument '--jsn'; did you mean '--json'?"),
    ("status results more", "unknown argument 'more'; this command takes no such argument."),
    # Keys without their group
    ("sweep trials=5", "unknown key 'trials'; did you mean 'search.trials'?"),
    ("sweep lr=0.1", "unknown key 'lr'; did you mean 'search.space.learning_rate'?"),
    ("sweep trails=5", "unknown key 'trails'; did you mean 'search.trials'?"),
    ("sweep learning_rat=0.1", "unknown key 'learning_rat'; did you mean 'search.space.learning_rate'?"),
    ("sweep widht=[3]", "unknown key 'widht'; did you mean 'workload.widths'?"),
    ("sweep workers=2", "unknown key 'workers'; did you mean 'engine.workers'?"),
]


@pytest.mark.parametrize(("typed", "told"), partly(TYPED, 4), ids=[typed for typed, _ in TYPED])
def test_other_forms_are_answered_by_the_right_one(typed, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(typed.split()) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"study: {told}")
    assert (shown.out, shown.err.count("\n"), [*tmp_path.iterdir()]) == ("", 1, [])


@pytest.mark.parametrize("words", [[], ["--debug"]])
def test_alone_it_shows_the_everyday_commands(words, capsys):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split() for line in lines if line.startswith("  python -m study")]
    assert [words[3] for words in shown] == [*EVERYDAY]
    assert len(lines) <= 12


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in VERBS)], ids=" ".join)
def test_every_help_names_the_exit_statuses(words, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert leaving.value.code == 0
    assert STATUSES in capsys.readouterr().out


def test_the_help_of_a_sweep_shows_groups_and_keys(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    shown = capsys.readouterr().out
    for setting in ("workload=NAME", "optimizer=NAME", "batch_size=64,256", "search.trials=20", "results=DIR"):
        assert f"\n  {setting}" in shown


@pytest.mark.parametrize(
    ("word", "key"), [("steps", "budget.steps"), ("seed", "seeds.trial"), ("batch_size", "batch_size"), ("zzz", None)]
)
def test_the_last_part_of_a_key_is_enough_to_find_it(word, key):
    assert full_key(word, ["batch_size", "budget.steps", "search.trials"]) == key


@pytest.mark.parametrize("verb", VERBS)
def test_a_help_names_only_options_that_there_are(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    named = re.findall(r"(?:study (\w+) )?(--[a-z][\w-]*)", capsys.readouterr().out)
    assert ("", "--help") in named
    known = {name: [*flags_of(name), *FLAGS] for name in VERBS}
    assert [option for other, option in named if option not in known[other or verb]] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("advise", "--device", "cpu"), "--device is the one to --measure on; give both."),
        (("noise", "--step-batch-sizes", "8"), "--step-batch-sizes are those of --one-step; give both."),
        (("report", "--figures", "svg", "--width", "5"), "--width is of the pages of a PDF; leave it out, or add pdf"),
        (("status", "--json", "--watch"), "--watch"),
        (("advise", "--bandwidth", "10"), "--bandwidth is of several devices, and --gpus is 1; give --gpus, or leave"),
        (("advise", "--allreduce-ms", "1", "--gpus", "1"), "--allreduce-ms is of several devices, and --gpus is 1"),
        (("schedule", "--examples", "9"), "--examples is for results of `study branch`"),
        (("schedule", "--rule", "linear"), "--rule is for results of `study branch`"),
        (("schedule", "--tokens", "0"), "--tokens must be at least 1, but got 0."),
        (("report", "--normalise-at", "8"), "--normalise-at is of workloads that are compared"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path, says, words, said):
    results = shutil.copytree(PUBLISHED, tmp_path / "results")
    assert said in says(*words, results, status=2)

"""Malformed input: one sentence that names the option, exit code 2, before any process starts.

Most of it in this process, where the start of another one can be made to fail; some as commands,
for what only a fresh interpreter shows (bytes of the command line, seconds).
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing.process
import os
import re
import resource
import time
from pathlib import Path

import pytest
from commands import Command

from fastrl import cli
from fastrl.config import SECTIONS, TrainConfig, check
from fastrl.config_file import write_config
from fastrl.envs.options import EnvOptions
from fastrl.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from fastrl.errors import ConfigError
from fastrl.resolve import resolve
from fastrl.workers.process import Launcher
from fastrl.workers.run_folder import choose_run_folder

SECONDS = 5.0
"""Of one processor, in which malformed input is refused."""

ENV = ["--env", "gym:CartPole-v1"]
DIGITS = "9" * 5000


@pytest.fixture(autouse=True)
def no_process(monkeypatch):
    def start(*_args, **_keywords):
        raise AssertionError("a process was started")

    monkeypatch.setattr(Launcher, "spawn", start)
    monkeypatch.setattr(Launcher, "fork", start)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)


def refusal(command, arguments: list[str], capsys) -> str:
    """What a command says that refuses its arguments, without its name."""
    before, began = sorted(Path.cwd().rglob("*")), time.process_time()
    try:
        code = command(arguments)
    except SystemExit as ended:
        code = ended.code
    assert time.process_time() - began < SECONDS
    printed = capsys.readouterr()
    assert code == 2, printed
    assert printed.out == ""
    assert sorted(Path.cwd().rglob("*")) == before, "what is refused leaves nothing behind"
    return one_sentence(printed.err)


def one_sentence(text: str) -> str:
    match = re.fullmatch(r"fastrl-[a-z]+: (.*[.?)])\n", text)
    assert match is not None, text
    assert len(match[1]) < 600, text
    assert "Error" not in match[1].replace("ConfigError", ""), "Python's words"
    return match[1]


WORDS = [
    # No number, or none of the kind.
    (["--total-steps", "many"], "--total-steps is 'many'; it must be a whole number"),
    (["--total-steps", "1e6"], "--total-steps is '1e6'"),
    (["--total-steps", DIGITS], "--total-steps is '9999"),
    (["--total-steps", "9" * 4000], "--total-steps is 9999"),
    (["--total-steps", "0"], "--total-steps is 0; it must be at least 1"),
    (["--seed", "-1"], "--seed is -1"),
    (["--seed", "2147483648"], "--seed is 2147483648"),
    (["--seed", "0x10"], "--seed is '0x10'"),
    (["--epochs", "1.5"], "--epochs is '1.5'; it must be a whole number"),
    (["--epochs", ""], "--epochs is ''"),
    (["--epochs="], "--epochs is ''"),
    (["--epochs", "true"], "--epochs is 'true'"),
    (["--epochs", "nan"], "--epochs is 'nan'"),
    (["--minibatches", "-4"], "--minibatches is -4"),
    (["--minibatches", "65537"], "--minibatches is 65537"),
    (["--workers", "-3"], "--workers is -3"),
    (["--workers", "atuo"], "--workers is 'atuo'; it must be a whole number or 'auto'"),
    (["--workers", "5000"], "--workers is 5000"),
    (["--groups-per-worker", "0"], "--groups-per-worker is 0"),
    (["--envs-per-worker", "inf"], "--envs-per-worker is 'inf'"),
    (["--envs-per-worker", "1048577"], "--envs-per-worker is 1048577"),
    (["--rollout-length", "4097"], "--rollout-length is 4097"),
    (["--stagger", "-1"], "--stagger is -1"),
    (["--keep", "0"], "--keep is 0"),
    (["--milestone-every", "0"], "--milestone-every is 0"),
    (["--max-restarts", "-1"], "--max-restarts is -1"),
    (["--max-worker-restarts", "1e400"], "--max-worker-restarts is '1e400'"),
    (["--max-skipped", "-0.0"], "--max-skipped is '-0.0'"),
    (["--max-policy-lag", "-2"], "--max-policy-lag is -2"),
    (["--batch-size", "0"], "--batch-size is 0"),
    (["--env-timeout", "-0.0"], "--env-timeout is -0.0; it must be more than 0"),
    (["--env-timeout", "nan"], "--env-timeout is nan"),
    (["--inference-wait", "-1"], "--inference-wait is -1.0"),
    (["--inference-wait", "soon"], "--inference-wait is 'soon'; it must be a number or 'auto'"),
    (["--reward-scale", "0"], "--reward-scale is 0.0"),
    (["--reward-scale", "1e400"], "--reward-scale is inf"),
    (["--reward-clip", "none"], "--reward-clip is 'none'"),
    (["--reward-clip", "-inf"], "--reward-clip is -inf"),
    (["--learning-rate", "nan"], "--learning-rate is nan"),
    (["--learning-rate", "1e-3x"], "--learning-rate is '1e-3x'; it must be a number"),
    (["--learning-rate", DIGITS], "--learning-rate is inf"),
    (["--target-kl", "0"], "--target-kl is 0.0"),
    (["--adam-eps", "2"], "--adam-eps is 2.0"),
    (["--max-grad-norm", "inf"], "--max-grad-norm is inf"),
    (["--gamma", "1.0000001"], "--gamma is 1.0000001"),
    (["--gamma", "1e400"], "--gamma is inf"),
    (["--gae-lambda", "-0.1"], "--gae-lambda is -0.1"),
    (["--clip", "-0.0"], "--clip is -0.0; it must be more than 0"),
    (["--entropy-coef", "yes"], "--entropy-coef is 'yes'"),
    (["--value-coef", "-1"], "--value-coef is -1.0"),
    (["--stop-at-return", "inf"], "--stop-at-return is inf"),
    (["--noop-max", "1001"], "--noop-max is 1001"),
    (["--frame-skip", "two"], "--frame-skip is 'two'"),
    (["--sticky-actions", "nan"], "--sticky-actions is nan"),
    (["--max-episode-steps", "9" * 4000], "--max-episode-steps is 9999"),
    (["--hidden", "64", "x"], "--hidden is (64, 'x'); it must be a list, each item a whole number"),
    (["--hidden"], "--hidden is ()"),
    (["--hidden", "0"], "--hidden is (0,)"),
    (["--hidden", "99999999999"], "--hidden is (99999999999,)"),
    (["--channels", "32", "64"], "--channels is 32 64"),
    (["--image-features", "0"], "--image-features is 0"),
    (["--normalize-obs", "maybe"], "--normalize-obs is 'maybe'; it must be true or false"),
    # No such name.
    (["--mode", "asink"], "--mode is 'asink'; it must be 'async' or 'sync'"),
    (["--resume", "yes"], "--resume is 'yes'"),
    (["--lr-schedule", "cosine"], "--lr-schedule is 'cosine'"),
    (["--dtype", "f16"], "--dtype is 'f16'"),
    (["--device", "gpu"], "--device is 'gpu'"),
    (["--preset", "atri"], "--preset: there is no preset 'atri'; there are: atari"),
    (["--preset", "../atari"], "--preset: there is no preset '../atari'"),
    (["--model", "natur"], "--model: There is no model 'natur', perhaps you meant 'nature'"),
    (["--model", "py:nets"], "--model: The model 'py:nets' is not py:module:Class"),
    (["--env", ""], "--env: The environment id '' has no family"),
    (["--env", "Pong"], "--env: The environment id 'Pong' has no family: write family:name, did"),
    (["--env", "atri:Pong"], "--env: There is no family atri:"),
    (["--env", "gym:CartPole-v9"], "--env: There is no environment 'gym:CartPole-v9', did you"),
    (["--env", "ale:pnog"], "--env: There is no environment 'ale:pnog', did you mean ale:pong"),
    (["--env", "py:mine"], "--env: There is no environment 'py:mine'"),
    # Only the library knows these, which main does not load; with workers one of them does.
    (["--env", "envpool:CartPole-v99", "--workers", "0"], "no environment 'envpool:CartPole-v99'"),
    (["--env", "gym:\udcff"], "--env is 'gym:\\udcff', which is no valid text"),
    (["--save-every", "5m"], "--save-every is '5m'"),
    (["--save-every", "300"], "--save-every is '300'"),
    (["--save-every", "nans"], "--save-every is 'nans'"),
    (["--log-every", "1e400u"], "--log-every is '1e400u'"),
    (["--log-every", ""], "--log-every is ''"),
    (["--wrap", "wrappers.Mine"], "--wrap is 'wrappers.Mine'"),
    (["--env-args", "3"], "--env-args has '3'; it must be key=value"),
    (["--env-args", "x=1", "x=2"], "--env-args names 'x' more than once"),
    (["--env-args", "x=\udcff"], "--env-args is 'x=\\udcff', which is no valid text"),
    (["--action-mask", ""], "--action-mask is empty"),
    # Words that are out of place.
    (["--workrs", "3"], "no option '--workrs'; perhaps you meant --workers"),
    (["--learning_rte=1"], "no option '--learning-rte'; perhaps you meant --learning-rate"),
    (["--no-epochs"], "no option '--no-epochs'; perhaps you meant --epochs"),
    (["--\udcff"], "no option '--\\udcff'"),
    (["-e", "4"], "no option '-e'"),
    (["--" + "x" * 5000], "no option '--xxxx"),
    (["--keep-best", "true"], "--keep-best takes no value (--keep-best turns it on, --no-keep"),
    (["--fire-reset=0"], "--fire-reset takes no value"),
    (["--epochs", "3", "4"], "--epochs takes one value, and '4' follows it"),
    (["--epochs", "--workers", "2"], "--epochs is given no value"),
    (["--epochs"], "--epochs is given no value"),
    (["--tyro-print-completion", "ksh"], "--tyro-print-completion is 'ksh'"),
    # Contradictions.
    (["--workers", "0", "--mode", "async"], "--workers 0 runs everything in one process"),
    (["--c-bar", "2"], "--c-bar 2.0 is larger than --rho-bar 1.0"),
    (["--envs-per-worker", "3", "--groups-per-worker", "2"], "--envs-per-worker 3 is not a"),
    (["--envs-per-worker", "4", "--groups-per-worker", "2", "--rollout-length", "8",
      "--batch-size", "20"], "--batch-size 20 is not a multiple of 16"),
    (["--exact-resume"], "--exact-resume needs --mode sync"),
    (["--exact-resume", "--mode", "sync"], "and --save-every is 300s; give updates"),
    (["--exact-resume", "--mode", "sync", "--save-every", "15u"], "--save-every 15u is not a mult"),
    (["--mode", "sync", "--log-every", "5"], "--log-every is 5.0 in sync mode"),
    (["--mode", "sync", "--inference-wait", "3"], "--inference-wait is 3.0, but in sync mode"),
    (["--resume", "must"], "--resume must needs --run-dir"),
    (["--resume", "must", "--run-dir", "new"], "--run-dir new does not exist"),
    (["--init-from", "file"], "--init-from file is not a run's folder"),
    (["--init-from", "empty"], "--init-from empty is not a run's folder"),
    (["--init-from", "x" * 300], "--init-from 'xxxx"),
    (["--init-from", "run\0"], "--init-from"),
    (["--run-dir", "run", "--resume", "must", "--init-from", "empty"], "--init-from is empty, but"),
    (["--run-dir", "run", "--resume", "must", "--gamma", "7"], "--gamma is 7.0"),
    # Places where no run can be.
    (["--run-dir", "empty"], "--run-dir empty exists already"),
    (["--run-dir", ""], "--run-dir . exists already"),
    (["--run-dir", "file"], "--run-dir file exists already"),
    (["--run-dir", "file", "--resume", "must"], "--run-dir file holds no run"),
    (["--run-dir", "empty", "--resume", "must"], "--run-dir empty holds no run"),
    (["--run-dir", "file/run"], "--run-dir 'file/run' cannot be made"),
    (["--run-dir", "loop"], "--run-dir 'loop' is a link that leads nowhere"),
    (["--run-dir", "loop/run"], "--run-dir 'loop/run' cannot be made"),
    (["--run-dir", "x" * 300], "--run-dir 'xxxx"),
    (["--run-dir", "new/" + "x" * 300], "--run-dir 'new/xxxx"),
    (["--run-dir", "a/" * 4000], "--run-dir 'a/a/"),
    (["--run-dir", "run\0"], "--run-dir 'run\\x00' cannot be made"),
    (["--run-dir", "run\udcff"], "--run-dir is 'run\\udcff', which is no valid text"),
]  # fmt: skip


def name_of(value: str | list[str]) -> str:
    """A short name of a case, of letters that any terminal has."""
    text = value if isinstance(value, str) else " ".join(value)
    return text[:40].encode("ascii", "replace").decode()


@pytest.mark.parametrize("words, sentence", WORDS, ids=name_of)
def test_fastrl_train_refuses_in_one_sentence(folder, capsys, words, sentence):
    env = [] if {"--env", "run"} & {*words} else ENV
    # tyro looks for its own flags in the first place alone.
    words = [*words, *env] if words[0].startswith("--tyro") else [*env, *words]
    assert sentence in refusal(cli.train_main, words, capsys)


@pytest.mark.parametrize(
    "program, words, sentence",
    [
        ("eval", ["empty"], "empty is not a run's folder"),
        ("eval", ["x" * 300], "the folder"),
        ("eval", ["run", "--episodes", "0"], "--episodes is 0"),
        ("eval", ["run", "--episodes", "ten"], "--episodes is 'ten'; it must be a whole number"),
        ("eval", ["run", "--episodes", "9" * 4000], "--episodes is 9999"),
        ("eval", ["run", "--seed", DIGITS], "--seed is '9999"),
        ("eval", ["run", "--checkpoint"], "--checkpoint is given no value"),
        ("eval", ["run", "--checkpoint", "bset"], "--checkpoint"),
        ("eval", ["run", "--checkpoint", "x" * 300], "--checkpoint"),
        ("eval", ["run", "--greedy", "true"], "--greedy takes no value (--greedy turns it on)"),
        ("eval", ["run", "--episode", "3"], "'--episode'; perhaps you meant --episodes"),
        ("check", ["CartPole"], "The environment id 'CartPole' has no family"),
        ("check", [ENV[1], "--rows", "1.5"], "--rows is '1.5'"),
        ("check", [ENV[1], "--seed", "-1"], "--seed is -1"),
        ("check", [ENV[1], "--frame-skip", "0"], "--frame-skip is 0"),
        ("check", [ENV[1], "--env-args", "x"], "--env-args has 'x'"),
        ("bench", ["rigs"], "no bench 'rigs'; perhaps you meant rings"),
        ("bench", ["rings", "--words", "0"], "--words is 0"),
        ("bench", ["rings", "--repeats", "x"], "--repeats is 'x'"),
        ("bench", ["rings", "--", "--epochs", "3"], "rings takes no flags of fastrl-train"),
        ("bench", ["envs", "--seconds", "nan"], "--seconds is nan"),
        ("bench", ["envs", "--seconds", "1e400"], "--seconds is inf"),
        ("bench", ["rings", "--trips", "9" * 400], "--trips is 9999"),
        ("bench", ["rings", "--trips", "-" + "9" * 400], "--trips is -9999"),
        ("bench", ["rings", "--json", "x" * 300], "--json"),
        ("bench", ["envs", "--sizes", "1", "two"], "--sizes is (1, 'two')"),
        ("bench", ["envs", "--", "--epochs", "x"], "--epochs is 'x'"),
        ("bench", ["sanity", "--only", "none"], "--only names 'none'"),
    ],
    ids=name_of,
)
def test_the_other_commands_refuse_in_one_sentence(folder, capsys, program, words, sentence):
    assert sentence in refusal(getattr(cli, f"{program}_main"), words, capsys)


@pytest.mark.parametrize(
    "program, missing", [("eval", "PATH"), ("check", "STR"), ("bench", "Expected one of {sanity")]
)
def test_what_is_missing_is_named(folder, capsys, program, missing):
    """By tyro, in a box of its own."""
    with pytest.raises(SystemExit) as ended:
        getattr(cli, f"{program}_main")([])
    assert ended.value.code == 2
    assert missing in capsys.readouterr().err


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    """What a run has decided, without the run."""
    leaf = ObservationSpec((4,), "float32", "vector", None)
    action = ActionSpec(kind="discrete", shape=(), dtype="int32", env_dtype="int32", n=2)
    spec = EnvSpec(ENV[1], {"obs": leaf}, {"action": action}, 1, None)
    given = TrainConfig(env=ENV[1], seed=3, workers=2, mode="async")
    return resolve(check(given), spec, cores=2, bf16_cpu=False)


@pytest.fixture
def folder(tmp_path, monkeypatch, config) -> Path:
    """The current folder: a run that could go on, a file, an empty folder, a link to itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "step_000000000100.pt").write_bytes(b"state")
    write_config(tmp_path / "run" / "config.toml", config)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


RESUME = ["--run-dir", "run", "--resume", "must"]
FILE = "run/config.toml"

# What becomes of the text of a run's file, and what is said of it.
FILES = [
    (lambda text: "", "has no `env` in its section [run]"),
    (lambda text: "\n# nothing\n", "has no `env`"),
    (lambda text: "{}", "cannot be read as a configuration"),
    (lambda text: "[run\n", "at line 1"),
    (lambda text: text.encode("utf-16"), "'utf-8' codec can't decode"),
    (lambda text: text.encode() + b"\xff\n", "'utf-8' codec can't decode"),
    (lambda text: text + "\0\n", "cannot be read as a configuration"),
    (lambda text: "\ufeff" + text, "cannot be read as a configuration"),
    (lambda text: text[: len(text) // 2] + '"', "cannot be read as a configuration"),
    (lambda text: text + "[run]\nseed = 4\n", "the line '[run]'"),
    (lambda text: edit(text, "seed", "4\nseed = 4"), "the line 'seed = 4'"),
    (lambda text: edit(text, "epochs", DIGITS), "too many digits, probably in the line 'epochs ="),
    (lambda text: edit(text, "hidden", "[" * 100_000), "too many brackets"),
    (lambda text: text + "# " + "x" * 20_000_000 + "\n", "more than 1,048,576 bytes"),
    (lambda text: text + "[lern]\n", "no section [lern], perhaps you meant 'learn'"),
    (lambda text: text + '["\\u0007"]\n', "no section ['\\x07']"),
    (lambda text: "gamma = 0.9\n" + text, "no section [gamma], it belongs to section [learn]"),
    (lambda text: "learn = 3\n", "no section [learn], which learn = 3 is not"),
    (lambda text: text.replace("[learn]", "[[learn]]"), "no section [learn], which learn ="),
    (lambda text: text.replace("[learn]", "[learn.more]"), "section [learn] has no option 'more'"),
    (lambda text: edit(text, "epochs", "2\nepoch = 3"), "'epoch', perhaps you meant 'epochs'"),
    (lambda text: edit(text, "epochs", "2\nworkers = 3"), "'workers', it belongs to section [roll"),
    (lambda text: edit(text, "epochs", '2\n"" = 3'), "section [learn] has no option ''"),
    (lambda text: edit(text, "env", None), "has no `env`"),
    (lambda text: edit(text, "env", "3"), "--env is 3; it must be a string"),
    (lambda text: edit(text, "env", '"x"'), "--env: The environment id 'x' has no family"),
    (lambda text: edit(text, "env", '"gym:Nope-v1"'), "--env: There is no environment 'gym:Nope"),
    (lambda text: edit(text, "seed", None), "nothing for `seed`"),
    (lambda text: edit(text, "workers", None), "'auto' for `workers`"),
    (lambda text: edit(text, "envs_per_worker", None), "nothing for `envs_per_worker`"),
    (lambda text: edit(text, "batch_size", None), "nothing for `batch_size`"),
    (lambda text: edit(text, "batch_size", "100"), "--batch-size 100 is not a multiple"),
    (lambda text: edit(text, "c_bar", "1.5"), "--c-bar 1.5 is larger than --rho-bar 1.0"),
    (lambda text: edit(text, "mode", '"sync"\nexact_resume = true').replace(
        "exact_resume = false\n", ""), "--exact-resume needs"),
    (lambda text: edit(text, "workers", "0"), "--workers 0 runs everything in one process"),
    (lambda text: edit(text, "resume", "true"), "--resume is True"),
    (lambda text: edit(text, "keep_best", '"true"'), "--keep-best is 'true'; it must be true or"),
    (lambda text: edit(text, "keep_best", "1"), "--keep-best is 1; it must be true or false"),
    (lambda text: edit(text, "epochs", "true"), "--epochs is True; it must be a whole number"),
    (lambda text: edit(text, "gamma", "[0.9]"), "--gamma is [0.9]; it must be a number"),
    (lambda text: edit(text, "gamma", "{ a = 1 }"), "--gamma is {'a': 1}; it must be a number"),
    (lambda text: edit(text, "gamma", "2026-01-01"), "--gamma is datetime.date(2026, 1, 1)"),
    (lambda text: edit(text, "hidden", '[64, "x"]'), "--hidden is [64, 'x']; it must be a list"),
    (lambda text: edit(text, "hidden", "[64, nan]"), "--hidden is [64, nan]"),
    (lambda text: edit(text, "hidden", "64"), "--hidden is 64; it must be a list"),
    (lambda text: edit(text, "wrap", '["x"]'), "--wrap is 'x'"),
    (lambda text: edit(text, "env_args", "[[]]"), "--env-args is [[]]"),
    (lambda text: edit(text, "total_steps", "0x" + "f" * 5000), "--total-steps is a number of"),
    (lambda text: edit(text, "learning_rate", "0x" + "f" * 5000), "--learning-rate is a number of"),
    (lambda text: edit(text, "learning_rate", "1e400"), "--learning-rate is inf"),
    (lambda text: edit(text, "log_every", "nan"), "--log-every is 'nans'"),
    (lambda text: edit(text, "preset", '"atri"'), "--preset: there is no preset 'atri'"),
    (lambda text: edit(text, "run_dir", "7"), "--run-dir is 7; it must be a path"),
]  # fmt: skip


def edit(text: str, key: str, value: str | None) -> str:
    """The text with another value for a key, or without it; a key that is unset comes first."""
    line = "" if value is None else f"{key} = {value}\n"
    if re.search(rf"^{key} = ", text, re.MULTILINE):
        return re.sub(rf"^{key} = .*\n", lambda _: line, text, flags=re.MULTILINE)
    section = next(s for s, kind in SECTIONS.items() if key in kind.__dataclass_fields__)
    return text.replace(f"[{section}]\n", f"[{section}]\n{line}")


@pytest.mark.parametrize("change, sentence", FILES, ids=[sentence for _, sentence in FILES])
def test_a_malformed_config_of_a_run_is_one_sentence(folder, capsys, change, sentence):
    before = Path(FILE).read_text()
    after = change(before)
    assert after != before
    Path(FILE).write_bytes(after if isinstance(after, bytes) else after.encode())
    said = refusal(cli.train_main, RESUME, capsys)
    assert sentence in said
    assert FILE in said or "--env" in said, "which file it is"


def test_what_lies_in_the_place_of_a_config_is_no_config(folder, capsys):
    for place in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("config.toml")):
        Path(FILE).rename("config.toml")
        place(Path(FILE))
        assert "--run-dir run holds no run" in refusal(cli.train_main, RESUME, capsys)
        (Path(FILE).rmdir if Path(FILE).is_dir() else Path(FILE).unlink)()
        Path("config.toml").rename(FILE)


NUMERIC = [
    (section, field.name)
    for section, kind in SECTIONS.items()
    for field in dataclasses.fields(kind)
    if re.search(r"\b(int|float)\b", str(field.type)) and "tuple" not in str(field.type)
]
EVERYWHERE_WRONG = ["nan", "inf", "-inf", "-1e400", "1e400", "-1", "0x" + "f" * 5000, '"1"', "[1]",
                    "true", '""', "-9223372036854775809"]  # fmt: skip
# A goal may lie below 0.
ALLOWED = {
    ("stop_at_return", "-1"),
    ("stop_at_return", "-9223372036854775809"),
    ("log_every", '"1"'),
}


@pytest.mark.parametrize("section, name", NUMERIC, ids=[name for _, name in NUMERIC])
def test_no_number_may_be_any_number(folder, section, name):
    text = Path(FILE).read_text()
    for value in EVERYWHERE_WRONG:
        Path(FILE).write_text(edit(text, name, value))
        asked = TrainConfig(run_dir=Path("run"), resume="must")
        if (name, value) in ALLOWED:
            choose_run_folder(asked, ["run_dir", "resume"])
            continue
        with pytest.raises(ConfigError) as caught:
            choose_run_folder(asked, ["run_dir", "resume"])
        said = str(caught.value)
        assert f"{FILE}: --{name.replace('_', '-')} is" in said, value
        assert "\n" not in said and len(said) < 300


def test_the_numbers_are_all_there():
    names = {name for _, name in NUMERIC}
    assert names >= {"total_steps", "workers", "log_every", "reward_clip", "gamma", "frame_stack"}
    numbers = {
        field.name
        for field in dataclasses.fields(EnvOptions)
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    }
    assert names >= numbers
    assert not any(math.isnan(getattr(TrainConfig(), name) or 0) for name in numbers)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--workrs", "3"], "perhaps you meant --workers"),
        (["--epochs", "1.5"], "--epochs is '1.5'"),
        (["--gamma", "1e400"], "--gamma is inf"),
        (["--run-dir", "run\udcff"], "--run-dir is 'run\\udcff', which is no valid text"),
        (["--\udcfe"], "no option '--\\udcfe'"),
        (["--total-steps", DIGITS], "--total-steps is '9999"),
        (["--env", "gym:CartPole-v9"], "did you mean"),
        (["--workers", "0", "--mode", "async"], "--workers 0 runs everything in one process"),
        (RESUME, "--gamma is 7.5"),
    ],
    ids=name_of,
)
def test_a_command_refuses_in_five_seconds(folder, words, sentence):
    Path(FILE).write_text(edit(Path(FILE).read_text(), "gamma", "7.5"))
    before, began = sorted(folder.rglob("*")), cpu_of_children()
    command = Command(*([] if {"--env", "run"} & {*words} else ENV), *words, cwd=folder)
    output, _ = command.process.communicate(timeout=5 * SECONDS)
    assert cpu_of_children() - began < SECONDS
    assert command.process.returncode == 2, output
    assert sentence in one_sentence(output)
    assert command.family() == {}
    assert sorted(folder.rglob("*")) == before


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

"""Settings of a run of a second, as files that the commands read."""

import json

SETTINGS = {
    "task": "modular_sum", "task_params": {"terms": 1}, "width": 8, "heads": 2, "layers": 1, "hidden": 8, "warm_steps": 20,
    "updates": 3, "prompts": 4, "responses": 4, "evaluate_every": 2, "evaluate_responses": 8, "rate": 1e-2, "rule": "tis",
}  # fmt: skip
FACTORS = {
    "rule": {"none": {"rule": "none"}, "cis": {"rule": "cis"}},
    "age": {"0": {"system": "synchronous"}, "2": {"system": "steps_off", "system_params": {"ahead": 2}}},
}


def toml(value):
    """A value as TOML writes it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


def written(path, **values):
    """A file with these fields at its top."""
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in values.items()))
    return path


def settings_file(folder, **changes):
    """A file of settings."""
    return written(folder / "tiny.toml", **{**SETTINGS, **changes})


def study_file(folder, *, base=(), **changes):
    """A study of four combinations and two seeds."""
    study = {"title": "a tiny study", "seeds": 2, "base": {**SETTINGS, **dict(base)}, "factors": FACTORS, **changes}
    return written(folder / "tiny_study.toml", **study)


def result(path):
    """What a record says that is a function of the settings."""
    return json.loads(path.read_text())["result"]

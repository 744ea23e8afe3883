"""Which model ran: a HuggingFace ``config.json``, a preset by name, or a bare parameter count."""

from __future__ import annotations

import difflib
import functools
import math
import re
from pathlib import Path

import msgspec

from steptime.errors import UsageError
from steptime.roofline.huggingface import shape_from_config
from steptime.roofline.shape import Layer, ModelShape

__all__ = ["Layer", "ModelShape", "load_model", "parse_parameters", "preset_names"]

_PRESETS = Path(__file__).with_name("presets.toml")
_CONFIG = "config.json"
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_COUNT = re.compile(r"^([0-9][0-9_.]*(?:e[+-]?[0-9]+)?)([kmbt]?)$", re.IGNORECASE)
#: Fewer is no language model: 8 was meant as 8e9.
_LEAST_PARAMETERS = 1000
#: Endings that name a further trained or converted copy of the same shape.
_ENDINGS = re.compile(r"[-_ ](instruct|chat|base|hf|it)$", re.IGNORECASE)


class _Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    source: str
    config: dict[str, object]
    names: list[str] = []


class _Presets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: list[_Preset]


def load_model(text: str) -> ModelShape:
    """The model that `text` names: a ``config.json`` or the folder that holds it, a preset, or a count ("8e9", "8B").

    Raises:
        UsageError: no such file or name (the nearest names are suggested), or the file does not describe a model.
    """
    text = text.strip()
    if _COUNT.match(text):
        return parse_parameters(text)
    if not text:
        raise UsageError(f"--model is empty: name a {_CONFIG}, a preset or a parameter count")
    path = Path(text)
    if path.is_file() or (path / _CONFIG).is_file():
        return _from_file(path if path.is_file() else path / _CONFIG)
    preset = _presets().get(_key(text))
    if preset is None:
        raise _unknown(text, is_folder=path.is_dir())
    return shape_from_config(preset.config, preset.name, preset.source)


def parse_parameters(text: str) -> ModelShape:
    """A bare parameter count, "8e9" or "8B": 6N per token can be told from it, attention can't.

    Raises:
        UsageError: not a number, or too small for a model.
    """
    found = _COUNT.match(text.strip())
    try:
        count = float(found[1]) * _UNITS[found[2].lower()] if found else math.nan
    except ValueError:
        count = math.nan
    if not _LEAST_PARAMETERS <= count < math.inf:
        raise UsageError(f"{text!r} is no parameter count: write 8e9 or 8B")
    note = "only a parameter count was given: attention can't be counted"
    return ModelShape(
        name=text.strip(), source="parameter count given by the user", counted=round(count), notes=(note,)
    )


def preset_names() -> list[str]:
    """The names of the presets, in the order of the file."""
    return list(dict.fromkeys(preset.name for preset in _presets().values()))


@functools.cache
def _presets() -> dict[str, _Preset]:
    table = msgspec.toml.decode(_PRESETS.read_bytes(), type=_Presets)
    return {_key(name): preset for preset in table.model for name in (preset.name, *preset.names)}


def _key(name: str) -> str:
    name = name.strip().rpartition("/")[2]
    while (rest := _ENDINGS.sub("", name)) != name:
        name = rest
    return re.sub(r"[^a-z0-9.]+", "", name.lower()).removeprefix("meta")


def _from_file(path: Path) -> ModelShape:
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror}): name a readable {_CONFIG}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path}: not a model's {_CONFIG} ({error}): name the file that is beside the weights"
        ) from error
    name = keys.get("_name_or_path")
    return shape_from_config(keys, name if isinstance(name, str) and name else str(path), str(path))


def _unknown(text: str, *, is_folder: bool) -> UsageError:
    if is_folder:
        return UsageError(f"--model {text}: the folder has no {_CONFIG}: name the file, a preset or a parameter count")
    if text.endswith(".json") or text.startswith((".", "/", "~")):
        return UsageError(f"--model {text}: no such file: name a {_CONFIG}, a preset or a parameter count")
    near = difflib.get_close_matches(_key(text), _presets(), n=3, cutoff=0.5)
    names = list(dict.fromkeys(_presets()[key].name for key in near))
    known = f"did you mean {' or '.join(names)}?" if names else f"presets are {', '.join(preset_names())}."
    return UsageError(
        f"--model {text}: no such file or preset: {known} A config.json or a parameter count (8e9) is fine too"
    )

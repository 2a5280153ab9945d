"""Trajectories into what trainers read: one neutral stream of samples, many formats.

    from rock.rollout.export import export, options_of, samples

    for sample in samples(Path("runs/mine"), options_of(rows="turn")): ...   # no files
    export(Path("runs/mine"), Path("out"), "verl", options_of(splits=2))      # files, resumable

Read in this order: `sample` (what a sample is), `cut` (how one is made), `stream` (all of a run),
`formats` (one class each), `engine` (files). docs/export.md has the fields.
"""

from rock.rollout.export.engine import export, reload
from rock.rollout.export.formats import FORMATS, Reloaded
from rock.rollout.export.options import ExportOptions, options_of
from rock.rollout.export.sample import Sample
from rock.rollout.export.stream import samples

__all__ = [
    "FORMATS",
    "ExportOptions",
    "Reloaded",
    "Sample",
    "export",
    "options_of",
    "reload",
    "samples",
]

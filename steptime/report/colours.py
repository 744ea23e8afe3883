"""One colour for each part of the step, the same in every chart, and shades of it for its leaves."""

from __future__ import annotations

import colorsys

from steptime.model import LEAVES
from steptime.report.ledger import PRODUCTIVE

#: Each has a contrast of 2.9 or more against a white and a black page, so that one palette serves both, and any two stay
#: apart (at least 9 in OKLab, times 100) for full colour vision, protanopia and deuteranopia (Machado et al., 2009).
PARTS = {
    PRODUCTIVE: "#50a65f",
    "kernels": "#7394d4",
    "exposed_comm": "#ff6200",
    "pipeline_bubble": "#a61ef8",
    "recompute": "#0072aa",
    "stragglers": "#b65109",
    "host": "#955061",
    "unexplained": "#7d8590",
}
#: What has no place among the parts, such as a leaf of a report that another version wrote.
OTHER = "#7d8590"
#: How far the shades of one part lie from its colour: of 1, in hue and in lightness.
_HUE_SPREAD = 0.14
_LIGHTNESS_SPREAD = 0.34


def part_colour(part: str) -> str:
    """The colour of a slice, or of useful work."""
    return PARTS.get(part, OTHER)


def leaf_colour(key: str) -> str:
    """The colour of a leaf, given as ``slice/leaf``: a shade of its slice's; of a slice or useful work: its own."""
    part = key.partition("/")[0]
    family = [leaf.key for leaf in LEAVES if leaf.slice == part]
    if len(family) < 2 or key not in family:
        return part_colour(part)
    place = family.index(key) / (len(family) - 1) - 0.5
    # Neighbours in the list alternate between dark and light, because they often lie side by side.
    tone = (-1) ** family.index(key) * (0.35 + 0.65 * (place + 0.5)) / 2
    red, green, blue = (int(part_colour(part)[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    lightness = min(max(lightness + tone * _LIGHTNESS_SPREAD, 0.28), 0.74)
    shade = colorsys.hls_to_rgb((hue + place * _HUE_SPREAD) % 1, lightness, saturation)
    return "#" + "".join(f"{round(channel * 255):02x}" for channel in shade)

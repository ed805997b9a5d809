"""The colours of page and pictures, by what they are for. A drawn picture has those on white as marks of them."""

LIGHT = {
    "page": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#6a737d",
    "line": "#d0d7de",
    "band": "#eef1f4",
    "baseline": "#59636f",
    "chosen": "#0a5bb5",
    "bad": "#b3261e",
    "first": "#0072b3",
    "second": "#c14f00",
    "third": "#007a5a",
    "fourth": "#a8487f",
    "fifth": "#8a6d00",
}
DARK = {
    "page": "#101418",
    "ink": "#e4e8ec",
    "soft": "#98a2ad",
    "line": "#313a44",
    "band": "#1c2229",
    "baseline": "#a9b4c0",
    "chosen": "#6cb0ff",
    "bad": "#ff8a80",
    "first": "#56b4e9",
    "second": "#ff9e57",
    "third": "#3ccf9f",
    "fourth": "#e795c0",
    "fifth": "#e0c04a",
}

"""Makes a drawn picture part of a page: marks that speak, values that can be read back, colours of the page."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from autotune.outputs.report.pictures import PIXELS, Mark, Picture
from autotune.outputs.report.pictures.colours import DARK, LIGHT
from autotune.outputs.report.pictures.draw import svg_of
from autotune.outputs.report.text import printable

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"#([\w.-]+)")
_FONT = re.compile(r"font: *((?:bold |700 )?)([\d.]+)px [^;]*")


def drawn(picture: Picture, watermark: str) -> Element:
    """A picture as an SVG element for a page: it takes colours and font of the page that it stands in."""
    root = ElementTree.fromstring(printable(svg_of(picture, watermark)))
    _drop(root, "metadata", "style")
    marks = {mark.name: mark for panel in picture.panels for mark in panel.marks}
    _rename(root, picture.name, set(marks))
    speaking = [_speak(element, marks[element.get("id", "")]) for element in root.iter() if element.get("id") in marks]
    for order, element in enumerate(speaking):
        # One stop of the Tab key for a picture; the arrow keys go on from there.
        element.set("tabindex", "-1" if order else "0")
        element.set("id", f"{picture.name}-{element.get('id')}")
    _hush(root)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"role": "group", "aria-label": printable(picture.question), "class": "drawn"})
    return root


def _drop(root: Element, *names: str) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in names and child.get("type") != "none":
                parent.remove(child)


def _rename(root: Element, prefix: str, marks: set[str]) -> None:
    """Give what is referred to names of this picture alone, and what is not none; a mark keeps its name."""
    for element in root.iter():
        style = element.attrib.get("style")
        if style:
            element.set("style", _style(style))
        for name, value in list(element.attrib.items()):
            if name == _HREF:
                del element.attrib[name]
                element.set("href", _REFERENCE.sub(rf"#{prefix}-\1", value))
            elif value.startswith("url("):
                element.set(name, _REFERENCE.sub(rf"#{prefix}-\1", value))
    text = ElementTree.tostring(root, encoding="unicode")
    referred = {match.removeprefix(f"{prefix}-") for match in re.findall(r'(?:href="|url\()#([\w.-]+)', text)}
    for element in root.iter():
        name = element.get("id", "")
        if name in marks:
            continue
        element.attrib.pop("id", None)
        if name in referred:
            element.set("id", f"{prefix}-{name}")
        elif name == "watermark":
            element.set("class", name)


def _style(style: str) -> str:
    """A style whose colours are variables, and whose font is the page's."""
    for look, colour in LIGHT.items():
        style = style.replace(colour, f"var(--{look},{colour})")
    return _FONT.sub(r"font-size: \2px", style)


def _speak(element: Element, mark: Mark) -> Element:
    """Let an element say what it is to pointer, keyboard, screen reader and program."""
    title = Element(f"{{{_SVG}}}title")
    title.text = printable(mark.told)
    element.insert(0, title)
    element.attrib.update({"class": "mark", "role": "img"})
    for name, value in mark.data.items():
        element.set(f"data-{name}", printable(value) if isinstance(value, str) else repr(value))
    return element


def _hush(root: Element) -> None:
    """Keep numbers along the axes from being read out one by one: the picture's own words say what it shows."""
    for element in root.iter(f"{{{_SVG}}}text"):
        element.set("aria-hidden", "true")


def inline(root: Element) -> str:
    """An SVG element within a page."""
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode")


def alone(root: Element) -> str:
    """The same as a file: with a ground of its own, light or dark as the reader's screen is."""
    whole = ElementTree.fromstring(inline(root))
    style = Element(f"{{{_SVG}}}style")
    variables = "".join(f"--{look}:{colour};" for look, colour in DARK.items())
    style.text = (
        "svg{background:#fff;font-family:system-ui,sans-serif}"
        f"@media (prefers-color-scheme:dark){{svg{{background:{DARK['page']};{variables}}}}}"
    )
    whole.insert(0, style)
    whole.set("width", str(PIXELS))
    return ElementTree.tostring(whole, encoding="unicode", xml_declaration=False) + "\n"

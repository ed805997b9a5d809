"""Read the commands in the text of a shell or a job script, without running any.

``commands(text, variables) -> list[Simple]``: its simple commands in the order in which they run,
words expanded, each with its bytes in the text. Variables are those of the environment; without
any (``None``) a ``${NAME}`` that the text does not set stays a reference. `launchers.read` makes
the one command that serves of them.

>>> [one] = commands("export A=1; nohup vllm serve ./m -tp ${TP:-2} > log &", {})
>>> one.typed, one.env, one.around
(['nohup', 'vllm', 'serve', './m', '-tp', '2'], {'A': '1'}, ('&', '> log'))
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from autotune.base import BadInput, redact

from .expression import evaluate

if TYPE_CHECKING:
    from tree_sitter import Node

Variables = Mapping[str, str] | None

PLAIN = re.compile(r"""(?:[\w@%+=:,./\[\] \t-]|'[^']*+'|"[^"$`\\]*+")*+""", re.ASCII)
"""A text that ``shlex.split`` splits as a shell does."""
_MARK = re.compile("\0([^\0]*)\0")
_MOST_STEPS, _LONGEST, _LONGEST_CUT = 20_000, 100_000, 1_000
"""Nodes of a script that are visited; characters of a value, and of one that a pattern cuts."""
_EXPANDED = {
    "simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "string",
    "raw_string", "ansi_c_string", "process_substitution",
}  # fmt: skip
_QUOTED, _DOCUMENT, _BARE = (
    re.compile(rf"\\\n|\\({signs})", re.DOTALL) for signs in (r'[$`"\\]', r"[$`\\]", ".")
)
"""Patterns of a backslash that takes a meaning away: in double quotes, in a here-document, else."""
_JOINED = {"&&": "and", "-a": "and", "||": "or", "-o": "or", "!": "not", "(": "(", ")": ")"}
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_TERNARY = re.compile(r"([^?]*)\?([^?:]*):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    """An expanded word, and the bytes of the text that it comes from."""

    text: str
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command.

    Attributes:
        words: program and arguments.
        env: what the text sets for it: exported before, or in front of it.
        files: what the text wrote before it by here-documents, ``tee`` and ``echo``, by name.
        span: its bytes in the text.
        around: its redirections, pipes and ``&``, as they were typed.
        stdin: its here-document.
    """

    words: tuple[Word, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
    around: tuple[str, ...] = ()
    stdin: str | None = None

    @property
    def typed(self) -> list[str]:
        return [word.text for word in self.words]


def commands(text: str, variables: Variables) -> list[Simple]:
    """Read the simple commands of a script; raises `BadInput` for a text that no shell reads.

    A value that depends on a run stands in a word as a mark, for which `known` raises `BadInput`.
    """
    return Script(text, variables).found


def known(text: str) -> str:
    """Return a word; raises `BadInput` naming the part that depends on a run."""
    if mark := _MARK.search(text):
        raise BadInput(mark[1].replace("\1", " "))
    return text


def unmarked(text: str) -> str:
    """Return a text for people, with ``…`` for values that depend on a run."""
    return _MARK.sub("…", text)


def _mark(reason: str) -> str:
    return f"\0{chr(1).join(reason.split())}\0"


def _only_run(raw: str) -> str:
    return _mark(f"{raw} is known only when the script runs: write its value")


def _line(node: Node) -> int:
    return node.start_point[0] + 1


def _continued(text: str) -> str:
    """Give a text a shell's line ends, byte for byte: blanks behind a backslash, a trailing one."""
    if "\0" in text:
        raise BadInput("malformed command line: it has a NUL character")
    if wrong := re.search(r"[ \t]([`^])[ \t]*\r?\n", text):
        raise BadInput(
            f"a line ends in {wrong[1]}, as cmd's and PowerShell's do: end it in a backslash (\\)"
        )
    text = text.replace("\r", " ")
    text = re.sub(r"\\([ \t]+)\n", r"\1\\\n", text)
    return re.sub(r"\\(?=\s*\Z)", " ", text)


def _nodes(root: Node) -> Iterator[Node]:
    left = [root]
    while left:
        node = left.pop()
        yield node
        left += reversed(node.children)


class Script:
    """A walk through a script: what it sets, writes and starts.

    Attributes:
        found: its simple commands.
        notes: what was read otherwise than a shell does.
    """

    def __init__(self, text: str, variables: Variables) -> None:
        self.found: list[Simple] = []
        self.notes: dict[str, None] = {}
        self._variables = variables
        self._values: dict[str, list[str]] = {"@": [], "*": [], "#": ["0"]}
        self._exported: set[str] = set()
        self._files: dict[str, str] = {}
        self._functions: dict[str, Node] = {}
        self._active: list[str] = []
        self._around: tuple[str, ...] = ()
        self._targets: tuple[tuple[str, str], ...] = ()
        self._stdin: str | None = None
        self._steps, self._testing, self._secret = 0, False, False
        if PLAIN.fullmatch(text):
            self._start_plain(text)
            return
        try:
            self._source = _continued(text).encode(errors="surrogateescape")
            self._all(self._parsed().children)
        except UnicodeError:
            raise BadInput("malformed command line: it is no text") from None
        except RecursionError:
            raise BadInput("the command line is nested too deeply to be read") from None

    def _start_plain(self, text: str) -> None:
        words = [Word(word, (0, len(text.encode()))) for word in shlex.split(text)]
        if words:
            self.found.append(Simple(tuple(words), span=(0, len(text.encode()))))

    def _parsed(self) -> Node:
        """Parse the text; a line that begins with an option belongs to the command above it."""
        import tree_sitter
        import tree_sitter_bash

        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
        while True:
            root = parser.parse(self._source).root_node
            nodes = [*_nodes(root)]
            for node in nodes:
                above = node.prev_named_sibling
                while above is not None and above.type == "comment":
                    above = above.prev_named_sibling
                gap = self._slice(above.end_byte, node.start_byte) if above is not None else ";"
                starts = node.type == "command" and self._raw(node).startswith("-")
                if starts and re.fullmatch(r"(?:[\s\\]|#.*)*", gap):
                    break
            else:
                break
            self.notes[
                f"line {_line(node)} begins with an option: it is read as part of the command above"
            ] = None
            blank, end = b" " * len(gap.encode()), node.start_byte
            self._source = self._source[: end - len(blank)] + blank + self._source[end:]
        if root.has_error:
            broken = next(node for node in nodes if node.is_error or node.is_missing)
            at = " ".join(self._raw(broken).split())[:40] or "its end"
            raise BadInput(
                f"malformed command line: a shell cannot read line {_line(broken)} at {at!r}; close "
                "what is open there: a quote, a bracket, a loop"
            )
        return root

    def _raw(self, node: Node) -> str:
        return self._slice(node.start_byte, node.end_byte)

    def _slice(self, start: int, end: int) -> str:
        return self._source[start:end].decode(errors="surrogateescape")

    # Statements.

    def _walk(self, node: Node) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise BadInput("the script is too long to be read: give the serving command alone")
        visit: Callable[[Node], None] = getattr(self, f"_run_{node.type}", self._run_children)
        visit(node)

    def _run_children(self, node: Node) -> None:
        self._all(node.children)

    def _all(self, nodes: Iterable[Node]) -> None:
        around = self._around
        for node in nodes:
            if node.is_named:
                behind = node.next_sibling
                self._around = (*around, "&") if behind and behind.type == "&" else around
                self._walk(node)
        self._around = around

    def _run_command(self, node: Node) -> None:
        parts = [one for one in node.named_children if not one.type.endswith("_redirect")]
        settings = [part for part in parts if part.type == "variable_assignment"]
        parts = parts[len(settings) :]
        if settings and "\n" in self._slice(settings[-1].end_byte, parts[0].start_byte):
            # Settings in a line of their own are none of the next line's command.
            self._all(settings)
            settings = []
        words: list[Word] = []
        for part in parts:
            before = words[-1].text if words else ""
            self._secret = redact.is_secret_name(
                before if before.startswith("-") else self._raw(part).partition("=")[0]
            )
            span = part.start_byte, part.end_byte
            words += [Word(text, span) for text in self._fields(part)]
        self._secret = False
        env = {name: "".join(self._values[name]) for name in sorted(self._exported)}
        env |= {name: "".join(values) for name, values in map(self._assigned, settings)}
        files, span = dict(self._files), (node.start_byte, node.end_byte)
        if words:
            self._start(Simple(tuple(words), env, files, span, self._around, self._stdin))

    def _start(self, command: Simple) -> None:
        name, *arguments = command.typed
        if name in self._functions and name not in self._active:
            self._active.append(name)
            self._values |= {str(i): [text] for i, text in enumerate(arguments, 1)}
            self._values |= {"@": arguments, "*": arguments, "#": [str(len(arguments))]}
            self._walk(self._functions[name])
            self._active.pop()
            return
        self.found.append(command)
        targets, content = self._targets, command.stdin
        if "tee" in command.typed[:3]:
            sign = ">>" if "-a" in arguments else ">"
            targets = tuple((sign, one) for one in arguments if one[0] != "-" and one != "tee")
        elif name in {"echo", "printf"}:
            content = _echoed(arguments)
        elif name != "cat":
            return
        for sign, file in targets if content is not None else ():
            self._files[file] = f"{self._files.get(file, '') if sign == '>>' else ''}{content}"

    def _run_comment(self, node: Node) -> None:
        if (raw := self._raw(node)).startswith("#SBATCH"):
            span = node.start_byte, node.end_byte
            words = tuple(Word(word, span) for word in raw.split())
            self.found.append(Simple(words, span=span))

    def _run_variable_assignment(self, node: Node) -> None:
        name, values = self._assigned(node)
        self._values[name] = values

    def _assigned(self, node: Node) -> tuple[str, list[str]]:
        name, value = self._raw(node.children[0]), node.child_by_field_name("value")
        self._secret = redact.is_secret_name(name)
        is_list = value is not None and value.type == "array"
        values = [""]
        if value is not None:
            parts = value.named_children if is_list else [value]
            values = [text for part in parts for text in self._fields(part, not is_list)]
            values = values if is_list else [" ".join(values)]
        self._secret = False
        if self._raw(node.children[1]) == "+=" and (before := self._lookup(name)) is not None:
            values = [*before, *values] if is_list else ["".join((*before[:1], *values))]
        if sum(map(len, values)) > _LONGEST:
            values = [_mark(f"${name} has more than {_LONGEST:,} characters")]
        return name, values

    def _run_declaration_command(self, node: Node) -> None:
        exports = {"export", "-x"} & set(map(self._raw, node.children))
        for part in node.named_children:
            if part.type == "variable_assignment":
                self._run_variable_assignment(part)
                part = part.children[0]
            if exports and self._raw(part) in self._values:
                self._exported.add(self._raw(part))

    def _run_unset_command(self, node: Node) -> None:
        for name in map(self._raw, node.named_children):
            self._values.pop(name, None)
            self._exported.discard(name)

    def _run_function_definition(self, node: Node) -> None:
        self._functions[self._raw(node.named_children[0])] = node.named_children[-1]

    def _run_redirected_statement(self, node: Node) -> None:
        outer = self._around, self._targets, self._stdin
        behind = []
        body, *redirects = node.named_children
        for part in redirects:
            inner = part.named_children if part.type == "heredoc_redirect" else [part]
            for one in inner:
                if one.type == "heredoc_body":
                    quoted = set(self._raw(inner[0])) & set("'\"\\")
                    self._stdin = self._raw(one) if quoted else self._joined(one, _DOCUMENT)[0]
                elif one.type.endswith("_redirect"):
                    sign = next((part.type for part in one.children if not part.is_named), "")
                    target = one.child_by_field_name("destination")
                    if target is not None and sign in {">", ">>"}:
                        self._targets += ((sign, " ".join(self._fields(target, True))),)
                    self._around += (self._raw(one),)
                elif not one.type.startswith("heredoc"):
                    behind.append(one)
        self._all([body, *behind])
        self._around, self._targets, self._stdin = outer

    def _run_pipeline(self, node: Node) -> None:
        around = self._around
        for part in node.named_children:
            rest = self._slice(part.end_byte, node.end_byte).strip()
            self._around = (rest, *around) if rest else around
            self._walk(part)
        self._around = around

    # Choices and loops.

    def _run_list(self, node: Node) -> None:
        first, last = node.named_children[0], node.named_children[-1]
        ends = node.children[1].type == "||"
        held = self._truth(first)
        if held is None:
            self._walk(first)
        if held is None and (ends or first.type == "test_command"):
            self._either(node, [], [last])
        elif held is not ends:
            # A command is taken to succeed.
            self._walk(last)

    def _run_if_statement(self, node: Node) -> None:
        self._choose(node, [one for one in node.children if one.is_named or one.type == "then"])

    def _choose(self, node: Node, parts: list[Node]) -> None:
        """Run the branch whose condition holds; each, if only a run tells."""
        then = next((i for i, part in enumerate(parts) if part.type == "then"), 0)
        body = [
            part for part in parts[then + 1 :] if part.type not in ("elif_clause", "else_clause")
        ]
        others = parts[then + 1 + len(body) :]
        self._all(parts[: then - 1])
        held = self._truth(parts[then - 1])
        if held is None:
            self._either(node, [parts[then - 1], *body], others)
        else:
            self._branch(body if held else others)

    def _branch(self, parts: list[Node]) -> None:
        if parts and parts[0].type == "elif_clause":
            inner = [one for one in parts[0].children if one.is_named or one.type == "then"]
            self._choose(parts[0], [*inner, *parts[1:]])
        else:
            self._all(parts)

    def _either(self, node: Node, *branches: list[Node]) -> None:
        """Run each branch; what they leave different is unknown behind them."""
        before, ends = self._values, []
        for branch in branches:
            self._values = dict(before)
            self._branch(branch)
            ends.append(self._values)
        first = self._raw(node).partition("\n")[0]
        for name in dict.fromkeys(name for end in ends for name in end):
            values = [end.get(name) for end in ends]
            if any(value != values[0] for value in values):
                reason = f"${name} depends on {first!r} in line {_line(node)}: write its value"
                self._values[name] = [_mark(reason)]

    def _run_case_statement(self, node: Node) -> None:
        subject, *items = node.named_children
        value = "".join(self._fields(subject, True))
        for item in items:
            patterns = item.children_by_field_name("value")
            body = [part for part in item.named_children if part not in patterns]
            if "\0" in value:
                self._either(node, [], body)
            elif any(fnmatchcase(value, "".join(self._fields(one, True))) for one in patterns):
                self._all(body)
                break

    def _run_for_statement(self, node: Node) -> None:
        name, *_ = map(self._raw, node.children_by_field_name("variable"))
        for value in node.children_by_field_name("value"):
            for text in self._fields(value):
                self._values[name] = [text]
                self._all(node.children_by_field_name("body"))

    def _run_loop(self, node: Node) -> None:
        self._either(node, [], node.children_by_field_name("body"))

    _run_while_statement = _run_c_style_for_statement = _run_loop

    def _truth(self, node: Node) -> bool | None:
        """Decide a condition; None if only a run does."""
        raw, parts = self._raw(node), node.named_children
        if node.type == "negated_command" and parts:
            return None if (held := self._truth(parts[0])) is None else not held
        if node.type == "list":
            both = [self._truth(parts[0]), self._truth(parts[-1])]
            ends = node.children[1].type == "||"
            return ends if ends in both else None if None in both else not ends
        if raw.startswith("(("):
            number = self._number(node)
            return None if "\0" in number else number != "0"
        if node.type != "test_command":
            return {"true": True, ":": True, "false": False}.get(raw)
        self._testing = True
        tokens = [*self._tested(node)][1:-1]
        self._testing = False
        return _decided(tokens)

    def _tested(self, node: Node) -> Iterator[str | list[str]]:
        """Yield the operators of a test, and its operands as lists of one text."""
        for part in node.children:
            if part.type in {"binary_expression", "unary_expression", "parenthesized_expression"}:
                yield from self._tested(part)
            elif part.type == "test_operator" or not part.is_named:
                yield self._raw(part)
            else:
                yield [" ".join(self._fields(part, True))]

    # Words.

    def _fields(self, node: Node, quoted: bool = False) -> list[str]:
        """Expand a word as a shell does: to none, one or several; ``quoted`` text is not split."""
        raw = self._raw(node)
        match node.type:
            case "raw_string":
                return [raw[1:-1]]
            case "ansi_c_string":
                return [_ansi(raw[2:-1])]
            case "string":
                inner = node.named_children
                if len(inner) == 1 and self._raw(inner[0]) == raw[1:-1]:
                    return self._fields(inner[0], True)
                return self._joined(node, _QUOTED, cut=1)
            case "process_substitution":
                return [_only_run(raw)]
        if node.type not in _EXPANDED:
            fields = self._joined(node, _BARE, quoted)
            bare = not quoted and not any(one.type in _EXPANDED for one in node.children)
            return [text for one in fields for text in (_braced(one) if bare else [one])]
        if node.type == "arithmetic_expansion":
            values = [self._number(node)]
        elif node.type == "command_substitution":
            values = [self._substituted(node)]
        else:
            values = self._parameter(node)
        return values if quoted else [text for value in values for text in value.split()]

    def _joined(
        self, node: Node, escaped: re.Pattern[str], quoted: bool = True, cut: int = 0
    ) -> list[str]:
        """Join what the parts of a word expand to with the text between them."""
        fields, start, end = [""] if quoted else [], node.start_byte + cut, node.end_byte - cut
        for part in (*(one for one in node.children if one.type in _EXPANDED), None):
            literal = self._slice(start, part.start_byte if part else end)
            pieces = [[escaped.sub(r"\1", literal)]] if literal else []
            if part:
                pieces.append(self._fields(part, quoted))
                start = part.end_byte
            for first, *more in filter(None, pieces):
                fields[-1:] = [(fields or [""])[-1] + first, *more]
        return fields

    def _lookup(self, name: str, optional: bool = False) -> list[str] | None:
        if name in self._values:
            return self._values[name]
        given = self._variables if self._variables is not None else {name: f"${{{name}}}"}
        if (self._secret or redact.is_secret_name(name)) and (name in given or not optional):
            return [f"${{{name}}}"]
        return [given[name]] if name in given and name.isidentifier() else None

    def _parameter(self, node: Node) -> list[str]:
        """Expand ``$NAME`` or ``${NAME…}``."""
        kinds = {"variable_name", "special_variable_name", "subscript"}
        at = next((i for i, one in enumerate(node.children) if one.type in kinds), None)
        if at is None:
            return [_only_run(self._raw(node))]
        subject, *rest = node.children[at:]
        name, _, index = self._raw(subject).partition("[")
        sign = self._raw(rest[0]) if len(rest) > 1 else ""
        argument = " ".join(text for one in rest[1:-1] for text in self._fields(one, True))
        values = self._lookup(name, bool(sign))
        every = (index or f"{name}]") in {"@]", "*]"}
        if values is not None and not every:
            place = int(index[:-1]) if index[:-1].isdecimal() else 0
            values = values[place : place + 1] or None
        if sign and sign[-1] in "-=+?":
            return self._default(name, values, sign, argument)
        if values is None and self._testing:
            self.notes[f"${name} is not set: it is taken as empty in a condition"] = None
            return [""]
        if values is None:
            return [_mark(f"${name} is not set: set it before, or write its value")]
        if self._slice(node.start_byte, subject.start_byte) == "${#":
            return [str(len(values) if every else len(values[0]))]
        if not sign:
            return values
        cut = [_cut(value, sign, argument) for value in values]
        return [_only_run(self._raw(node)) if one is None else one for one in cut]

    def _default(self, name: str, values: list[str] | None, sign: str, argument: str) -> list[str]:
        is_empty = values is None or (sign[0] == ":" and not "".join(values))
        if sign[-1] == "+":
            return ["" if is_empty else argument]
        if values is not None and not is_empty:
            return values
        if sign[-1] == "?":
            return [_mark(f"${name} is not set: {argument or 'set it before'}")]
        if sign[-1] == "=":
            self._values[name] = [argument]
        return [argument]

    def _substituted(self, node: Node) -> str:
        """Return what a command prints, where its text tells."""
        outer, self.found = self.found, []
        self._all(node.named_children)
        inner, self.found = self.found, outer
        if [one.typed for one in inner] == [["cat"]] and inner[0].stdin is not None:
            return inner[0].stdin.rstrip("\n")
        if len(inner) == 1 and inner[0].typed[0] == "echo":
            return _echoed(inner[0].typed[1:]).rstrip("\n")
        return _only_run(self._raw(node))

    def _flat(self, node: Node) -> str:
        """Return a node's text with its expansions."""
        if node.type in _EXPANDED - {"arithmetic_expansion"}:
            return "".join(self._fields(node, True))
        text, end = "", node.start_byte
        for part in node.children:
            text += self._slice(end, part.start_byte) + self._flat(part)
            end = part.end_byte
        return text + self._slice(end, node.end_byte)

    def _number(self, node: Node) -> str:
        """Evaluate the arithmetic in ``((…))``."""
        text = self._flat(node).lstrip("$")[2:-2]
        scope = {}
        try:
            for name in re.findall(r"(?<![\w\0])[A-Za-z_]\w*", "" if "\0" in text else text):
                value = (self._lookup(name) or [_mark(f"${name} is not set: set it before")])[0]
                text = value if "\0" in value else text
                scope[name] = int(value) if "\0" not in value else 0
            if mark := _MARK.search(text):
                return mark[0]
            for sign, word in (("/", "//"), ("&&", " and "), ("||", " or ")):
                text = text.replace(sign, word)
            return str(int(evaluate(_TERNARY.sub(r"(\2) if (\1) else (\3)", text), scope)))
        except (ValueError, NameError, TypeError, ArithmeticError):
            return _only_run(self._raw(node))


def _decided(tokens: list[str | list[str]]) -> bool | None:
    """Evaluate a test; None if only a run does."""
    written = list[str]()
    while tokens:
        match tokens:
            case [[one], "=" | "==" | "!=" as sign, [other], *rest]:
                holds: object = fnmatchcase(one, other) == (sign != "!=")
                unknown = "\0" in one + other
            case [[one], str(sign), [other], *rest] if sign in _NUMBERS:
                unknown = not re.fullmatch(r"-?\d{1,99} -?\d{1,99}", f"{one} {other}")
                holds = f"{one.lstrip('0') or 0} {_NUMBERS[sign]} {other.lstrip('0') or 0}"
            case ["-n" | "-z" as sign, [one], *rest]:
                holds, unknown = (sign == "-n") == bool(one), "\0" in one
            case [str(sign), *rest] if sign in _JOINED:
                holds, unknown = _JOINED[sign], False
            case [[one], *rest]:
                holds, unknown = bool(one), "\0" in one
            case _:
                return None
        if unknown:
            return None
        written.append(str(holds))
        tokens = rest
    try:
        return bool(evaluate(" ".join(written), {}))
    except (ValueError, TypeError):
        return None


def _echoed(words: Sequence[str]) -> str:
    options = [word for word in words[:1] if re.fullmatch("-[neE]+", word)]
    text = " ".join(words[len(options) :])
    return f"{_ansi(text) if 'e' in str(options) else text}{'' if 'n' in str(options) else chr(10)}"


_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}


def _ansi(text: str) -> str:
    """Read the escapes of ``$'…'`` and ``echo -e``."""

    def sign(match: re.Match[str]) -> str:
        number, octal, letter = match.groups()
        return (
            chr(int(number, 16) if number else int(octal, 8))
            if letter is None
            else (_SIGNS.get(letter, letter))
        )

    return re.sub(r"\\(?:[xu]([0-9A-Fa-f]{1,4})|([0-7]{1,3})|(.))", sign, text, flags=re.DOTALL)


def _braced(text: str) -> list[str]:
    """Expand a pair of braces with a comma, or a range, between them."""
    found = re.fullmatch(r"([^{}]*)\{([^{}]*,[^{}]*|(\d{1,3})\.\.(\d{1,3}))\}([^{}]*)", text)
    if found is None:
        return [text]
    before, inner, first, last, behind = found.groups()
    parts = map(str, range(int(first), int(last) + 1)) if first else inner.split(",")
    return [f"{before}{part}{behind}" for part in parts]


def _cut(text: str, sign: str, pattern: str) -> str | None:
    """Cut what a pattern matches off an end of a text; None if only a shell tells."""
    if sign not in {"%", "%%", "#", "##"} or "\0" in text + pattern or len(text) > _LONGEST_CUT:
        return None
    places = range(len(text) + 1)
    for place in places if sign in {"#", "%%"} else reversed(places):
        one, other = text[:place], text[place:]
        cut, left = (one, other) if sign[0] == "#" else (other, one)
        if fnmatchcase(cut, pattern):
            return left
    return text

"""Read the commands in the text of a shell or a job script, without running any.

``commands(text, variables) -> list[Simple]``: its simple commands in the order in which they run,
words expanded, each with its bytes in the text. Variables are those of the environment; without
any (``None``) a ``${NAME}`` that the text does not set stays a reference. `launchers.read` makes
the one command that serves of them.

>>> [one] = commands("export A=1; nohup vllm serve ./m -tp ${TP:-2} > log &", {})
>>> one.typed, one.env, one.around
(['nohup', 'vllm', 'serve', './m', '-tp', '2'], {'A': '1'}, ('> log',))
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING

from autotune.base import BadInput, StringDict, StringMap, Strings, frozen, redact

from .expression import evaluate

if TYPE_CHECKING:
    from tree_sitter import Node

Variables = StringMap | None

PLAIN = re.compile(r"""(?:[\w@%+=:,./\[\] \t-]|'[^']*+'|"[^"$`\\]*+")*+""", re.ASCII)
"""A text that ``shlex.split`` splits as a shell does."""
SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL | re.ASCII)
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
_JOINED = {
    "&&": "and", "-a": "and", "||": "or", "-o": "or", "!": "not", "-z": "not", "-n": "", "(": "(",
    ")": ")",
}  # fmt: skip
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(
    r"\s*\$\{?(#?)(\w+|[@*#])(?:\[([^\]]*)\])?(:?[-=+?]|%%?|##?|[/^,:]|)", re.ASCII
)
"""Parts of a parameter: whether its length is meant, its name, the index, the operator."""
_PLACEHOLDER = " is a placeholder: write its value in its place"
_TERNARY = re.compile(r"([^?]*)\?([^?:]*):(.*)", re.DOTALL)


@frozen
class Simple:
    """A simple command.

    Attributes:
        typed: program and arguments, expanded.
        env: what the text sets for it: exported before, or in front of it.
        files: what the text wrote before it by here-documents, ``tee`` and ``echo``, by name.
        around: its redirections and pipes, as they were typed.
        stdin: its here-document.
        notes: a line on each launcher in front of it that was left out.
    """

    typed: Strings
    env: StringMap = {}
    files: StringMap = {}
    around: Strings = ()
    stdin: str | None = None
    notes: Strings = ()


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


def _unset(name: str) -> str:
    return _mark(f"${name} is not set: set it before, or write its value")


def _bounded(name: str, values: list[str]) -> list[str]:
    if sum(map(len, values)) <= _LONGEST:
        return values
    return [_mark(f"{name} has more than {_LONGEST:,} characters")]


def _continued(text: str) -> str:
    """Give a text a shell's line ends, byte for byte: blanks behind a backslash, a trailing one."""
    if "\0" in text:
        raise BadInput("malformed command line: it has a NUL character")
    if wrong := re.search(r"[ \t]([`^])[ \t]*\r?\n", text):
        raise BadInput(
            f"a line ends in {wrong[1]}, as cmd's and PowerShell's do: end it in a backslash (\\)"
        )
    text = re.sub(r"\r(?=\n|\Z)", " ", text)
    # A page shows the shell's prompt in front.
    text = re.sub(r"\A(\s*)\$ ", r"\1  ", text)
    text = re.sub(r"\\([ \t]+)\n", r"\1\\\n", text)
    return re.sub(r"\\(?=\s*\Z)", " ", text)


def _nodes(root: Node) -> Iterator[Node]:
    left = [root]
    while left:
        node = left.pop()
        yield node
        left += reversed(node.children)


def _parts(node: Node) -> Iterator[Node]:
    """Yield what a shell expands in a word, or takes the quotes of."""
    for part in node.children:
        yield from [part] if part.type in _EXPANDED else _parts(part)


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
        self._files: StringDict = {}
        self._functions: dict[str, Node] = {}
        self._around: Strings = ()
        self._targets: tuple[tuple[str, str], ...] = ()
        self._stdin: str | None = None
        self._extra: tuple[Node, ...] = ()
        self._steps, self._testing, self._secret = 0, False, False
        if PLAIN.fullmatch(text):
            self.found += [Simple(words)] if (words := tuple(shlex.split(text))) else []
            return
        try:
            self._source = _continued(text).encode(errors="surrogateescape")
            self._all(self._parsed().children)
        except (UnicodeError, RecursionError):
            raise BadInput("malformed command line: it is no text, or nested too deeply") from None

    def _parsed(self) -> Node:
        """Parse the text; a line that begins with an option belongs to the command above it."""
        import tree_sitter
        import tree_sitter_bash

        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
        while True:
            # Any letter for other alphabets' bytes: the grammar's scanner asks C of their class.
            root = parser.parse(re.sub(rb"[\x80-\xff]", b"x", self._source)).root_node
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
                f"line {node.start_point[0] + 1} begins with an option: it is read as part of the command above"
            ] = None
            blank, end = b" " * len(gap.encode()), node.start_byte
            self._source = self._source[: end - len(blank)] + blank + self._source[end:]
        if root.has_error:
            broken = next(node for node in nodes if node.is_error or node.is_missing)
            if open_ := re.search(r"<[\w .-]+>", self._raw(root)):
                raise BadInput(f"{open_[0]}{_PLACEHOLDER}")
            at = " ".join(self._raw(broken).split())[:40] or "its end"
            raise BadInput(
                f"malformed command line: a shell cannot read line {broken.start_point[0] + 1} at {at!r}; close "
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
        getattr(self, f"_run_{node.type}", lambda one: self._all(one.children))(node)

    def _all(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.is_named:
                self._walk(node)

    def _run_command(self, node: Node) -> None:
        parts = [one for one in node.named_children if not one.type.endswith("_redirect")]
        parts += self._extra
        self._extra = ()
        settings = [part for part in parts if part.type == "variable_assignment"]
        parts = parts[len(settings) :]
        between = self._slice(settings[-1].end_byte, parts[0].start_byte) if settings else ""
        if "\n" in between.replace("\\\n", ""):
            # Settings in a line of their own are none of the next line's command.
            self._all(settings)
            settings = []
        words: list[str] = []
        for part in parts:
            option = words[-1] if words and words[-1][:1] == "-" else self._raw(part)
            self._secret = redact.is_secret_name(option.partition("=")[0])
            words += self._fields(part)
        self._secret = False
        env = {name: "".join(self._values[name]) for name in sorted(self._exported)}
        env |= {name: "".join(values) for name, values in map(self._assigned, settings)}
        if words:
            self._start(Simple(tuple(words), env, dict(self._files), self._around, self._stdin))

    def _start(self, command: Simple) -> None:
        name, *arguments = command.typed
        if name in self._functions:
            self._values |= {str(i): [text] for i, text in enumerate(arguments, 1)}
            self._values |= {"@": arguments, "*": arguments, "#": [str(len(arguments))]}
            self._walk(self._functions[name])
            return
        self.found.append(command)
        targets, content = self._targets, command.stdin
        if "tee" in command.typed[:3]:
            sign = ">>" if "-a" in arguments else ">"
            targets = tuple((sign, one) for one in arguments if one[0] != "-" and one != "tee")
        elif name != "cat":
            content = _printed(name, arguments)
        for sign, file in targets if content is not None else ():
            before = self._files.get(file, "") if sign == ">>" else ""
            self._files[file] = _bounded(file, [f"{before}{content}"])[0]

    def _run_comment(self, node: Node) -> None:
        if (raw := self._raw(node)).startswith("#SBATCH"):
            self.found.append(Simple(("sbatch", *raw.split()[1:])))

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
            parts = [part for part in parts if part.type != "comment"]
            values = [text for part in parts for text in self._fields(part, not is_list)]
            values = values if is_list else [" ".join(values)]
        self._secret = False
        if self._raw(node.children[1]) == "+=" and (before := self._lookup(name)) is not None:
            values = [*before, *values] if is_list else ["".join((*before[:1], *values))]
        return name, _bounded(f"${name}", values)

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
        outer = self._around, self._targets, self._stdin, self._extra
        behind: list[Node] = []
        typed: list[str] = []
        body, *redirects = node.named_children
        for part in redirects:
            inner = part.named_children if part.type == "heredoc_redirect" else [part]
            for one in inner:
                if one.type == "heredoc_body":
                    quoted = set(self._raw(inner[0])) & set("'\"\\")
                    self._stdin = self._raw(one) if quoted else self._joined(one, _DOCUMENT)[0]
                elif one.type.endswith("_redirect"):
                    sign = next((part.type for part in one.children if not part.is_named), "")
                    # The grammar takes the command's words behind a redirection for a part of it.
                    target, *more = one.children_by_field_name("destination") or [one]
                    self._extra += (*more,)
                    if sign in {">", ">>"}:
                        self._targets += ((sign, " ".join(self._fields(target, True))),)
                    written = self._slice(one.start_byte, target.end_byte)
                    is_open = sign == "<" and self._slice(one.end_byte, one.end_byte + 1) == ">"
                    typed.append(_mark(f"{written}>{_PLACEHOLDER}") if is_open else written)
                elif not one.type.startswith("heredoc"):
                    behind.append(one)
        self._around = (*typed, *outer[0])
        self._all([body, *behind])
        self._around, self._targets, self._stdin, self._extra = outer

    def _run_pipeline(self, node: Node) -> None:
        around = self._around
        for part in node.named_children:
            rest = self._slice(part.end_byte, node.end_byte).strip()
            self._around = (rest, *around) if rest else around
            self._walk(part)
        self._around = around

    # Choices and loops.

    def _status(self, node: Node, assumed: bool | None = True) -> bool | None:
        """Run a part of a list or a condition; whether it succeeds, as commands are assumed to.
        None if that depends on a run."""
        raw, parts = self._raw(node), node.named_children
        if node.type == "list":
            held = self._status(parts[0], assumed)
            if held is None:
                self._either(node, [], parts[-1:])
            ends = node.children[1].type == "||"
            return held if held in (None, ends) else self._status(parts[-1], assumed)
        if node.type == "negated_command" and parts:
            held = self._status(parts[0], None)
            return held if held is None else not held
        if raw.startswith("(("):
            number = self._number(node)
            return None if "\0" in number else number != "0"
        if node.type == "test_command":
            self._testing = True
            tokens = [*self._tested(node)][1:-1]
            self._testing = False
            return _decided(tokens)
        self._walk(node)
        return {"true": True, ":": True, "false": False}.get(raw, assumed)

    _run_list = _status

    def _run_if_statement(self, node: Node) -> None:
        inner = [
            one.children if one.type in ("elif_clause", "else_clause") else [one]
            for one in node.children
        ]
        self._choose(node, [part for parts in inner for part in parts])

    def _choose(self, node: Node, parts: list[Node]) -> None:
        """Run the branch of a chain whose condition holds; each, where that depends on a run."""
        kinds = [part.type for part in parts]
        if "then" not in kinds:
            self._all(parts)
            return
        then = kinds.index("then")
        end = next(
            (i for i, kind in enumerate(kinds) if kind in ("elif", "else") and i > then), None
        )
        body, others = parts[then + 1 : end], parts[end:] if end else []
        *_, condition = filter(lambda part: part.is_named, parts[:then])
        held = self._status(condition, None)
        if held is None:
            self._either(node, body, others)
        else:
            self._choose(node, body if held else others)

    def _either(self, node: Node, *branches: list[Node]) -> None:
        """Run each branch; what they leave different is unknown behind them."""
        before, ends = self._values, []
        for branch in branches:
            self._values = dict(before)
            self._choose(node, branch)
            ends.append(self._values)
        first = self._raw(node).partition("\n")[0]
        for name in dict.fromkeys(name for end in ends for name in end):
            values = [end.get(name) for end in ends]
            if any(value != values[0] for value in values):
                reason = f"${name} depends on {first!r} in line {node.start_point[0] + 1}: write its value"
                self._values[name] = [_mark(reason)]

    def _run_case_statement(self, node: Node) -> None:
        subject, *items = node.named_children
        self._testing = True
        value = "".join(self._fields(subject, True))
        self._testing = False
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

    def _run_while_statement(self, node: Node) -> None:
        condition, body = node.named_children[0], node.named_children[-1]
        ends = node.children[0].type == "until"
        if self._raw(condition) in ("true", ":"):
            self._walk(body)
            return
        while (held := self._status(condition, None)) is (not ends):
            self._walk(body)
        if held is None:
            self._either(node, [], [body])

    _run_c_style_for_statement = _run_while_statement

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
                if (
                    inner
                    and inner[0].type in _EXPANDED
                    and self._raw(inner[0]).strip() == raw[1:-1]
                ):
                    return self._fields(inner[0], True)
                return self._joined(node, _QUOTED, cut=1)
            case "process_substitution":
                return [_only_run(raw)]
        if node.type not in _EXPANDED:
            fields = self._joined(node, _BARE, quoted)
            bare = not (quoted or any(_parts(node)))
            return [text for one in fields for text in (_braced(one) if bare else [one])]
        if raw.startswith("$((") and raw.endswith("))"):
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
        for part in (*_parts(node), None):
            # The grammar counts blanks in front of an expansion in quotes as a part of it.
            whole = self._raw(part) if part else ""
            lead = whole[: len(whole) - len(whole.lstrip())]
            literal = self._slice(start, part.start_byte if part else end) + lead
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
        given = self._variables
        if given is None:
            given = {name: f"${{{name}}}"} if name.isidentifier() else {}
        if (self._secret or redact.is_secret_name(name)) and (name in given or not optional):
            return [f"${{{name}}}"]
        return [given[name]] if name in given else None

    def _parameter(self, node: Node) -> list[str]:
        """Expand ``$NAME`` or ``${NAME…}``."""
        found = _PARAMETER.match(raw := self._raw(node))
        if found is None:
            return [_only_run(raw)]
        count, name, index, sign = found.groups("")
        behind = node.start_byte + len(raw[: found.end()].encode())
        rest = [one for one in node.children if one.start_byte >= behind][:-1] if sign else []
        parts = [text for one in rest for text in self._fields(one, True)]
        argument = ("" if rest and rest[0].type == "regex" else " ").join(parts)
        values = self._lookup(name, bool(sign))
        index = name if name in "@*" else index or "0"
        if index == "*" and values is not None:
            values = [" ".join(values)]
        elif not index.isdecimal() and index != "@":
            values = [_only_run(raw)]
        elif index.isdecimal() and values is not None:
            values = values[int(index) :][:1] or None
        if sign and sign[-1] in "-=+?":
            return self._default(name, values, sign, argument)
        if values is None and self._testing:
            self.notes[f"${name} is not set: it is taken as empty in a condition"] = None
            return [""]
        if values is None:
            return [_unset(name)]
        if count:
            return [str(len(values) if index == "@" else len(values[0]))]
        cut = [_cut(value, sign, argument) if sign else value for value in values]
        return [_only_run(raw) if one is None else one for one in cut]

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
        if [one.typed for one in inner] == [("cat",)] and inner[0].stdin is not None:
            return inner[0].stdin.rstrip("\n")
        name, *words = inner[0].typed if len(inner) == 1 else [""]
        if mark := _MARK.search("".join(words)):
            return mark[0]
        if name in {"dirname", "basename"} and len(words) == 1:
            return getattr(posixpath, name)(words[0].rstrip("/")) or "."
        printed = _printed(name, words)
        return _only_run(self._raw(node)) if printed is None else printed.rstrip("\n")

    def _number(self, node: Node) -> str:
        """Evaluate the arithmetic in ``((…))``."""
        text = self._joined(node, _QUOTED)[0].lstrip("$")[2:-2]
        if "\0" not in text:
            text = _NAME.sub(lambda name: (self._lookup(name[0]) or [_unset(name[0])])[0], text)
        if mark := _MARK.search(text):
            return mark[0]
        for sign, word in (("/", "//"), ("&&", " and "), ("||", " or ")):
            text = text.replace(sign, word)
        try:
            return str(int(evaluate(_TERNARY.sub(r"(\2) if (\1) else (\3)", text), {})))
        except (ValueError, NameError, TypeError, ArithmeticError):
            return _only_run(self._raw(node))


def _decided(tokens: list[str | list[str]]) -> bool | None:
    """Evaluate a test; None if that depends on a run."""
    written = ""
    while tokens:
        match tokens:
            case [[one], "=" | "==" | "!=" as sign, [other], *rest] if "\0" not in one + other:
                written += f" {fnmatchcase(one, other) is (sign != '!=')}"
            case [[one], str(sign), [other], *rest] if sign in _NUMBERS and re.fullmatch(
                r"-?\d{1,99} -?\d{1,99}", f"{one} {other}"
            ):
                written += f" {int(one)} {_NUMBERS[sign]} {int(other)}"
            case [str(sign), *rest] if sign in _JOINED:
                written += f" {_JOINED[sign]}"
            case [[one], *rest] if "\0" not in one:
                written += f" {bool(one)}"
            case _:
                return None
        tokens = rest
    try:
        return bool(evaluate(written, {}))
    except (ValueError, TypeError):
        return None


def _printed(program: str, words: Sequence[str]) -> str | None:
    """Return what ``echo``, ``printf`` or ``seq`` prints; None if that depends on a run."""
    given, options = list(words), ""
    if program == "echo":
        if given and re.fullmatch("-[neE]+", given[0]):
            options = given.pop(0)
        text = " ".join(given)
        return f"{_ansi(text) if 'e' in options else text}{'' if 'n' in options else chr(10)}"
    try:
        if program == "seq" and len("".join(given)) < 20:
            first, *step, last = map(int, given if len(given) > 1 else ["1", *given])
            return "\n".join(map(str, range(first, last + 1, *step)))
        form = _ansi(given.pop(0)).replace("%d", "%s") if program == "printf" else ""
        count = form.count("%s")
        if form and len(form) * len(given) < _LONGEST:
            rows = [given[i : i + count] for i in range(0, len(given), count)] if count else [[]]
            return "".join(form % tuple(row) for row in rows)
    except (ValueError, TypeError, IndexError):
        pass
    return None


_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}


def _ansi(text: str) -> str:
    """Read the escapes of ``$'…'`` and ``echo -e``."""
    return re.sub(
        r"\\(?:[xu]([0-9A-Fa-f]{1,4})|(.))",
        lambda sign: chr(int(sign[1], 16)) if sign[1] else _SIGNS.get(sign[2], sign[2]),
        text,
        flags=re.DOTALL,
    )


def _braced(text: str) -> list[str]:
    """Expand a pair of braces with a comma between them."""
    if (found := re.fullmatch(r"([^{}]*)\{([^{}]*,[^{}]*)\}([^{}]*)", text)) is None:
        return [text]
    return [f"{found[1]}{part}{found[3]}" for part in found[2].split(",")]


def _cut(text: str, sign: str, pattern: str) -> str | None:
    """Cut what a pattern matches off an end of a text; None if that depends on a run."""
    if sign not in {"%", "%%", "#", "##"} or "\0" in text + pattern or len(text) > _LONGEST_CUT:
        return None
    turn = -1 if sign[0] == "#" else 1
    kept = "(.*?)" if len(sign) == 2 else "(.*)"
    found = re.fullmatch(f"(?s:{kept}){translate(pattern[::turn])}", text[::turn])
    return found[1][::turn] if found else text

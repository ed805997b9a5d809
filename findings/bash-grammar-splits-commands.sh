#!/usr/bin/env bash
# tree-sitter-bash 0.25.1: two settings on a line take the next line for their command, and words behind a redirection are lost to it.
#
# Guess: the syntax tree has bash's own commands: a line of settings ends at its newline, and `serve > log --port 1` has --port 1.
# Seen: `A=1 B=2`, newline, `serve` is one command with both settings in front of it (with one setting it is two statements, as in
# bash), so that variables of the script seem to reach the server's environment. Words behind a redirection are further
# destinations of it: `serve > log --port 1` is `serve` alone. A blank between a quote and a variable belongs to the variable's
# node, and to none of the text. Bash, run on the same lines, starts: serve without A and B; serve --port 1; serve with ' x'.
# Who meets it: whoever reads scripts by this grammar, for the words that a command gets or the variables that it sees.
#
# Output seen (2026-11-28, CPython 3.11, Linux, bash 5.2; tree-sitter 0.26.1, tree-sitter-bash 0.25.1):
#   one setting: variable_assignment 'A=1' | command 'serve'
#   two settings: command 'A=1 B=2\nserve'
#   redirection: command 'serve' | file_redirect '> /dev/null --port 1'
#   quoted variable: simple_expansion ' $A'
#   bash, two settings: serve, A is unset
#   bash, redirection: serve --port 1
#   bash, quoted variable: serve ' x'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check tree-sitter==0.26.1 tree-sitter-bash==0.25.1

cat >"$folder/ask.py" <<'PYTHON'
"""Print the nodes of some kinds in the syntax trees of a few lines."""

import tree_sitter
import tree_sitter_bash

LINES = {
    "one setting": ("A=1\nserve\n", ("variable_assignment", "command")),
    "two settings": ("A=1 B=2\nserve\n", ("command",)),
    "redirection": ("serve > /dev/null --port 1\n", ("command", "file_redirect")),
    "quoted variable": ('serve " $A"\n', ("simple_expansion",)),
}
parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def nodes(node):
    yield node
    for part in node.children:
        yield from nodes(part)


for name, (text, kinds) in LINES.items():
    root = parser.parse(text.encode()).root_node
    assert not root.has_error
    seen = [f"{one.type} {one.text.decode()!r}" for one in nodes(root) if one.type in kinds]
    print(f"{name}: {' | '.join(seen)}")
PYTHON

{
    "$folder/env/bin/python" "$folder/ask.py"
    bash -c "A=1 B=2
bash -c 'echo bash, two settings: serve, A is \${A-unset}'"
    name="bash, redirection" bash -c "exec 3>&1; serve() { printf '%s: serve %s\n' \"\$name\" \"\$*\" >&3; }
serve > /dev/null --port 1"
    name="bash, quoted variable" bash -c "serve() { printf \"%s: serve '%s'\n\" \"\$name\" \"\$@\"; }
A=x; serve \" \$A\""
} | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
one setting: variable_assignment 'A=1' | command 'serve'
two settings: command 'A=1 B=2\nserve'
redirection: command 'serve' | file_redirect '> /dev/null --port 1'
quoted variable: simple_expansion ' $A'
bash, two settings: serve, A is unset
bash, redirection: serve --port 1
bash, quoted variable: serve ' x'
SEEN
echo "as stated"

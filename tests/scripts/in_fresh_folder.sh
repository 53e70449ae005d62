#!/bin/sh
# in_fresh_folder.sh FOLDER COMMAND [ARGUMENT…]: empties FOLDER, enters it and becomes COMMAND.
set -eu
folder=$1
shift
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
exec "$@"

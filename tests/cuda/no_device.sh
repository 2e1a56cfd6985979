#!/bin/sh
# Without a GPU operators `cuda` and `cuda-bulk` are refused in one line, each by its name, and `coterie info` tells what was built. Exit 77 where there is one.
#   no_device.sh PROGRAM
program=$1
info=$("$program" info | grep '^cuda  ') || exit 1
case $info in
*'kernels for compute capability 8.x, 9.x, 10.x, 12.x; '*' multiplies in tiles of '*) exit 77 ;;
*'kernels for compute capability 8.x, 9.x, 10.x, 12.x; '*) ;;
*) echo "info: $info" && exit 1 ;;
esac
for command in 'bench moe --tokens 8 --shape olmoe --op cuda' 'run models/tiny --prompt x --op cuda' \
    'bench moe --tokens 8 --shape olmoe --op cuda-bulk'; do
    said=$("$program" $command 2>&1)
    status=$?
    echo "$status: $said"
    [ $status -ne 0 ] && [ "$(printf '%s\n' "$said" | wc -l)" = 1 ] || exit 1
    case $said in
    *"operator '${command##* }': "*NVIDIA*) ;;
    *) exit 1 ;;
    esac
done

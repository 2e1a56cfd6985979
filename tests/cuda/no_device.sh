#!/bin/sh
# Without a GPU operator `cuda` is refused in one line, and `coterie info` tells what was built. Exit 77 where there is one.
#   no_device.sh PROGRAM
program=$1
info=$("$program" info | grep '^cuda  ') || exit 1
case $info in
*'kernels for compute capability 8.x, 9.x, 10.x, 12.x; a device is there') exit 77 ;;
*'kernels for compute capability 8.x, 9.x, 10.x, 12.x; '*) ;;
*) echo "info: $info" && exit 1 ;;
esac
for command in 'bench moe --tokens 8 --shape olmoe' 'run models/tiny --prompt x'; do
    said=$("$program" $command --op cuda 2>&1)
    status=$?
    echo "$status: $said"
    [ $status -ne 0 ] && [ "$(printf '%s\n' "$said" | wc -l)" = 1 ] || exit 1
    case $said in
    *"operator 'cuda' needs "*) ;;
    *) exit 1 ;;
    esac
done

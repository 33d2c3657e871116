#!/usr/bin/env bash
# Limits of a server where the kernel really keeps them: in a virtual machine (no acceleration needed, two minutes) with
# a Debian kernel and cgroup v2 alone, over this machine's own files, which it can only read. For machines whose
# `memory` and `pids` are bound to cgroup v1; not a part of tests/run.sh.
#
# Wants qemu-system-x86_64, perl, curl, and the tests built (`cargo test --no-run`). Fetches a kernel and a static
# busybox by apt, and installs neither.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly WORK="$PWD/tests/.deps/vm"
TARGET=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
readonly TARGET

if [ ! -x "$WORK/bin/busybox" ]; then
  mkdir -p "$WORK"
  (
    cd "$WORK"
    kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
    apt-get download "$kernel" busybox-static
    for package in ./*.deb; do dpkg-deb -x "$package" .; done
  )
fi

# In the order of their dependencies.
readonly MODULES='virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci netfs fscache 9pnet 9pnet_virtio 9p overlay'
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,proc,dev,modules,lower,upper,root}
cp "$WORK/bin/busybox" "$root/bin/"
cp tests/vm/init "$root/init"
for module in $MODULES; do
  found=$(find "$WORK/lib/modules" -name "$module.ko" -print -quit)
  # Built in, or named otherwise in another kernel: then the guest says what it lacks.
  if [ -n "$found" ]; then
    cp "$found" "$root/modules/"
    echo "$module" >>"$root/modules/order"
  fi
done
(cd "$root" && find . | "$WORK/bin/busybox" cpio -o -H newc 2>/dev/null) >"$WORK/initrd"

log="$WORK/log"
timeout 600 qemu-system-x86_64 -accel tcg -cpu max -smp 2 -m 2048 -nographic -no-reboot \
  -kernel "$(find "$WORK/boot" -name 'vmlinuz-*' -print -quit)" -initrd "$WORK/initrd" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
  -append "console=ttyS0 quiet panic=-1 vm_script=$PWD/tests/vm/limits.sh vm_target=$TARGET/debug" </dev/null |
  tee "$log"
grep -q 'THE END' "$log" || { echo 'the machine did not come to its end'; exit 1; }
if grep -aq -e FAIL -e 'test result: F' "$log"; then exit 1; fi
echo "$(grep -ac '^PASS' "$log") checks and $(grep -ac 'test result: ok' "$log") test binaries passed"

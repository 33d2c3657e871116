# Runs in the virtual machine: the tests of limits in the root of the hierarchy, then a broker in a cgroup that is not.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/dev/shm
dmesg -n 1
here=$(dirname "$0")
target=$1
cgroups=/sys/fs/cgroup
place=/dev/shm/place
lazy="$target/lazy-mcp --config $place/config/broker.toml"

check() { if [ "$2" = "$3" ]; then echo "PASS $1"; else echo "FAIL $1: '$2' is not '$3'"; fi; }
holds() { case "$2" in *"$3"*) echo "PASS $1" ;; *) echo "FAIL $1: '$2' has no '$3'" ;; esac; }

for test in 'ownership limits' limits; do
  set -- $test
  binary=$(find "$target/deps" -name "$1-*" -executable -type f -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
  (cd "$here/../.." && timeout 300 "$binary" --nocapture --test-threads=1 ${2-})
done

mkdir -p $place/{config,catalogs,policies,state}
chmod 700 $place/state
cat >$place/config/broker.toml <<END
[server]
state_dir = "../state"
drain_seconds = 2
[backends.fixture]
command = "$target/fixture-mcp"
args = ["--log", "$place/fixture.log"]
catalog = "../catalogs/fixture.json"
policy = "../policies/fixture.lua"
[backends.fixture.ownership]
memory_max_mb = 64
pids_max = 20
[backends.fixture.deadlines]
stop_seconds = 4
polite_seconds = 1
END
cat >$place/policies/fixture.lua <<END
return broker.backend {
  api = 1, scope = "singleton", idle_timeout_seconds = 60, queue = { limit = 8, wait_seconds = 60 }, max_concurrency = 4,
}
END
$lazy catalog capture fixture 2>/dev/null

# serve CGROUP: a broker there.
serve() {
  (echo 0 >"$1/cgroup.procs" && exec $lazy serve >$place/out 2>>$place/log) &
  broker=$!
  for _ in $(seq 100); do curl -s localhost:8788/ready >/dev/null && break; sleep 0.1; done
}
works() { holds "$1: a call" "$($lazy call fixture echo text=hello 2>&1)" hello; }
over() {
  holds "$1: memory" "$($lazy call fixture allocate mib=200 2>&1)" 'went over its limit of 64 MiB of memory (`memory_max_mb`) and was ended'
  works "$1: after that"
  holds "$1: pids" "$($lazy call fixture fork_many count=40 2>&1)" 'went over its limit of 20 processes and threads (`pids_max`) and was ended'
  works "$1: after that"
}
stop() { kill -TERM $broker; wait $broker; check "$1: all of it proved gone" $? 0; }
# As systemd does between two runs of a unit.
anew() { find $cgroups/own -depth -type d -exec rmdir {} \; 2>/dev/null; mkdir $cgroups/own; }
where() { cat /proc/$broker/cgroup; }

echo '+memory +pids' >$cgroups/cgroup.subtree_control
anew
serve $cgroups/own
holds 'alone: in a leaf' "$(where)" '/own/lazy-mcp-'
check 'alone: passed on' "$(cat $cgroups/own/cgroup.subtree_control)" 'memory pids'
works alone
over alone

leaf=$cgroups$(where | cut -d: -f3)
kill -9 $broker
wait $broker 2>/dev/null
for _ in $(seq 50); do pgrep -f 'fixture-mcp --log' >/dev/null || break; sleep 0.1; done
check 'killed: nothing left' "$(pgrep -cf 'fixture-mcp --log')" 0
check 'killed: the leaf alone' "$(find $cgroups/own -mindepth 2 -type d)" "$leaf"
anew
serve $cgroups/own
works 'killed and started in its unit'
over 'killed and started in its unit'
kill -9 $broker
wait $broker 2>/dev/null
serve "$leaf"
check 'started in the leaf: the same' "$cgroups$(where | cut -d: -f3)" "$leaf"
works 'started in the leaf'
over 'started in the leaf'
stop 'started in the leaf'

anew
(echo 0 >$cgroups/own/cgroup.procs && exec sleep 1000) &
other=$!
sleep 0.5
serve $cgroups/own
check 'not alone: where it was' "$(where)" '0::/own'
check 'not alone: nothing passed on' "$(cat $cgroups/own/cgroup.subtree_control)" ''
works 'not alone'
holds 'not alone: shown' "$($lazy status)" "others than the broker: $other (sleep)"
stop 'not alone'
kill $other
wait $other 2>/dev/null

# What DelegateSubgroup= makes.
mkdir -p $cgroups/own.service/main
python3 -c "import os; os.setxattr('$cgroups/own.service', 'user.delegate', b'1')"
serve $cgroups/own.service/main
check 'subgroup: where it was' "$(where)" '0::/own.service/main'
works subgroup
over subgroup
holds 'subgroup: beside it' "$(find $cgroups/own.service -maxdepth 1 -type d)" own.service/lazy-mcp-
stop subgroup
check 'subgroup: removed' "$(find $cgroups/own.service -mindepth 1 -type d)" $cgroups/own.service/main

mkdir -p $cgroups/bare.service
serve $cgroups/bare.service
works 'not delegated'
holds 'not delegated: shown' "$($lazy status)" 'set Delegate=yes in the unit of the broker'
stop 'not delegated'
rmdir $cgroups/own.service/main $cgroups/own.service $cgroups/bare.service

echo -memory >$cgroups/cgroup.subtree_control
anew
serve $cgroups/own
works 'pids alone'
holds 'pids alone: kept' "$($lazy call fixture fork_many count=40 2>&1)" 'went over its limit of 20 processes and threads'
holds 'pids alone: shown' "$($lazy status)" 'has no controller `memory`'
check 'pids alone: not for threads' "$(cat $cgroups/own/cgroup.type $cgroups/own/lazy-mcp-*/cgroup.type | sort -u)" domain
stop 'pids alone'
check 'nothing left' "$(pgrep -cf 'fixture-mcp --log|lazy-mcp')" 0

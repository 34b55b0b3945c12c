#!/bin/bash
# guest.sh ROUNDS ROW...: runs in the guest. Before each client's output comes a line "== ROW SIDE".
set -u
rounds=$1; shift

here=/tmp/rdmux; mkdir -p $here/run
cp /host/rdmux /host/librdmux_capi.so $here    # /host is slow
export RDMUX_LIB_DIR=$here RDMUX_RUNTIME_DIR=$here/run
ip link set lo up

in_b() { ip netns exec b "$@"; }
rdmux() { in_b $here/rdmux "$@"; }
on_rxe() { "$@"; }
on_rdmux() { rdmux run -- "$@"; }

# until COMMAND...: waits until it succeeds
until_() { local n; for ((n = 0; n < 300; n++)); do "$@" && return; sleep 0.1; done
           echo "waited in vain: $*; the server:" >&2; cat $here/server >&2; return 1; }
listens_rxe() { ss -Hltn "sport = :$port" | grep -q .; }
listens_rdmux() { in_b ss -Hltn "sport = :$port" | grep -q .; }
cm_listens_rxe() { rdma resource show cm_id | grep -q LISTEN; }
cm_listens_rdmux() { rdmux host status default | grep -q LISTEN; }

# pair ROW SIDE LISTENS SERVER-ADDRESS PROGRAM ARGUMENT...: server and client; the address is the client's last word.
# What fails costs the other rows nothing.
pair() {
    local row=$1 side=$2 listens=$3 address=$4 server; shift 4
    on_$side "$@" >$here/server 2>&1 &
    server=$!
    if until_ $listens; then
        echo "== $row $side"
        on_$side timeout 60 "$@" $address 2>&1 | tee $here/client
        [ ${PIPESTATUS[0]} = 0 ] || { echo "$row on $side failed; its server:" >&2; cat $here/server >&2; }
    fi
    kill $server 2>/dev/null; wait $server 2>/dev/null
}

perftest() { # ROW SIDE PROGRAM ARGUMENT...
    local row=$1 side=$2 device=; shift 2
    [ $side = rxe ] && device='-d rxe0'
    # perftest's clock cannot always be calibrated.
    local n; for ((n = 0; n < 5; n++)); do
        port=$((port + 1)); : >$here/client
        pair $row $side listens_$side 127.0.0.1 "$@" $device -F -p $port
        grep -q '^Correlation coefficient' $here/client || return
    done
}

port=18600
for ((round = 0; round < rounds; round++)); do
    for row; do
        for side in rxe rdmux; do
            case $row in
            guest-bw) perftest $row $side ib_write_bw -s 65536 -n 2000 ;;
            guest-lat) perftest $row $side ib_send_lat -s 8 -n 100000 ;;
            guest-cm) [ $side = rxe ] && at=10.77.0.1 || at=10.77.0.2
                pair $row $side cm_listens_$side "-s $at" cmtime -c 1000 ;;
            esac
        done
    done
done
exit 0    # not the last server's status, which was killed

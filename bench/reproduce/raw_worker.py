"""TCP streams of a node without a file system: what the links give to plain sockets.

    raw_worker.py PORTS STREAMS START

PORTS: one stream is received on each. STREAMS: [address, port, bytes] of each that is sent. All
begin at START of the monotonic clock. The printed bytes are those that arrived here.
"""
import json
import socket
import sys
import threading
import time

PIECE = 1 << 20
SECONDS_MAX = 60
CONNECT_SECONDS_MAX = 10


def receive(listener, arrived):
    stream, _peer = listener.accept()
    stream.settimeout(SECONDS_MAX)
    buffer, total = bytearray(PIECE), 0
    while length := stream.recv_into(buffer):
        total += length
    arrived.append((total, time.monotonic()))


def connect(address, port, until):
    """The other node's program may begin late."""
    while True:
        try:
            return socket.create_connection((address, port), timeout=SECONDS_MAX)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def send(address, port, size, start):
    time.sleep(max(0.0, start - time.monotonic()))
    piece = bytes(PIECE)
    with connect(address, port, start + CONNECT_SECONDS_MAX) as stream:
        while size > 0:
            stream.sendall(piece[:size])
            size -= PIECE


def main():
    ports, streams, start = (json.loads(text) for text in sys.argv[1:])
    arrived = []
    threads = []
    for port in ports:
        listener = socket.create_server(("0.0.0.0", port))
        listener.settimeout(SECONDS_MAX)
        threads.append(threading.Thread(target=receive, args=(listener, arrived)))
    threads += [threading.Thread(target=send, args=(*stream, start)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(arrived) != len(ports):
        sys.exit(f"{len(arrived)} of {len(ports)} streams arrived")
    print(json.dumps({"bytes": sum(total for total, _time in arrived), "begun": start,
                      "ended": max([start, *(ended for _total, ended in arrived)])}))


main()

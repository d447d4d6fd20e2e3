"""A network namespace with nothing but loopback, for programs that use outside addresses even if given 127.0.0.1.

python -m tests.loopback python -m tests.faults.ray
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
NOT_PERMITTED = 77
"""The exit status where the system does not allow it."""


def main() -> None:
    """Become the program that is named, inside the namespace."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        print(f"a network namespace is not permitted here: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        sys.exit(NOT_PERMITTED)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP | IFF_RUNNING))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()

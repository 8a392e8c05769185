#!/usr/bin/env python3
"""Connects over a network of choice: choose.py wlan0 203.0.113.2 80"""
import socket
import sys

SOL_HAWSER, HAWSER_NETWORK, HAWSER_INTENT = 0x4857, 1, 2

network, address, port = sys.argv[1:]
with socket.socket() as connection:
    try:
        connection.setsockopt(SOL_HAWSER, HAWSER_NETWORK, network.encode())
    except OSError as error:
        sys.exit(f"{network}: {error.strerror}")
    connection.connect((address, int(port)))
    print(f"connected over {network}")

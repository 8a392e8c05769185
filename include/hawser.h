/* Hawser: the application's say about networks. SPDX-License-Identifier: Apache-2.0
 *
 * A program says what a socket needs before it connects; while `hawser up --direct` runs, it may choose its network, too:
 *
 *     setsockopt(fd, SOL_HAWSER, HAWSER_INTENT, "cheap", 5);
 *     setsockopt(fd, SOL_HAWSER, HAWSER_NETWORK, "wlan0", 5);
 *
 * While `hawser up` runs with a hub, a program may also declare what a socket of TCP or UDP will send, once that is connected; up to the declared
 * rate its packets go ahead of others, over the networks that lose least, in both directions. A datagram that cannot arrive within longest_wait_ms
 * is dropped:
 *
 *     struct hawser_rate rate = { .bits_per_second = 1000000, .burst_bytes = 3000, .longest_wait_ms = 150 };
 *     setsockopt(fd, SOL_HAWSER, HAWSER_RATE, &rate, sizeof rate);
 *
 * ENODEV: no such network (or it is gone, or a hub joins all of them), or no such intent. ENOPROTOOPT: Hawser does not run here, or its kernel
 * program could not be loaded; of HAWSER_RATE also: no hub joins the networks. The empty name takes the choice back. What is connected stays where
 * it is. ENOTCONN, EINVAL (HAWSER_RATE): the socket is not connected; it is of another protocol, or the value is too short. EAGAIN: so much is
 * declared at once that it was not heard.
 *
 * Without the kernel program: through a hub IP_TOS or IPV6_TCLASS with a code point of docs/manual/schedulers.md; without one SO_MARK with the mark that
 * `hawser status` shows (needs CAP_NET_ADMIN), or SO_BINDTODEVICE.
 */
#ifndef HAWSER_H
#define HAWSER_H

#include <stdint.h>

#define SOL_HAWSER 0x4857

/* The name of a network: its interface as `hawser status` shows it, or its access point ("02:00:00:00:01:00", lower case). */
#define HAWSER_NETWORK 1

/* "bulk", "interactive", "realtime", "cheap" or "redundant". */
#define HAWSER_INTENT 2

/* A struct hawser_rate. It holds for the way from this machine and for the way back, for this socket and where it is connected to now, until the
 * socket is closed or another is declared; a rate of zero takes it back. */
#define HAWSER_RATE 3

struct hawser_rate {
	uint32_t bits_per_second; /* of payload, on average */
	uint32_t burst_bytes;     /* of payload, that are sent at once at the most; 0: one packet */
	uint32_t longest_wait_ms; /* how long after it was sent a packet is of use; 0: not known */
};

#endif

/* Hawser: the application's say about networks. SPDX-License-Identifier: Apache-2.0
 *
 * A program says what a socket needs before it connects; while `hawser up --direct` runs, it may choose its network, too:
 *
 *     setsockopt(fd, SOL_HAWSER, HAWSER_INTENT, "cheap", 5);
 *     setsockopt(fd, SOL_HAWSER, HAWSER_NETWORK, "wlan0", 5);
 *
 * ENODEV: no such network (or it is gone, or a hub joins all of them), or no such intent. ENOPROTOOPT: Hawser does not run here, or its kernel
 * program could not be loaded. The empty name takes the choice back. What is connected stays where it is.
 *
 * Without the kernel program: through a hub IP_TOS or IPV6_TCLASS with a code point of docs/schedulers.md; without one SO_MARK with the mark that
 * `hawser status` shows (needs CAP_NET_ADMIN), or SO_BINDTODEVICE.
 */
#ifndef HAWSER_H
#define HAWSER_H

#define SOL_HAWSER 0x4857

/* The name of a network: its interface as `hawser status` shows it, or its access point ("02:00:00:00:01:00", lower case). */
#define HAWSER_NETWORK 1

/* "bulk", "interactive", "realtime", "cheap" or "redundant". */
#define HAWSER_INTENT 2

#endif

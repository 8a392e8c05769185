# These targets install what they need on a Debian machine (see scripts/needs).

.PHONY: demo test test-all package deb rpm fuzz fuzz-all corpus

# A download over three networks, alone and together; a picture of it in out/demo. Builds the two
# programs only, with the profile that compiles soonest. No root is needed where user namespaces are
# allowed; without them, or without TUN interfaces, the download is simulated.
demo:
	scripts/needs run
	scripts/with-cargo build --profile demo --locked -p hawser -p hawser-lab --bins
	target/demo/hawser-lab demo --out out/demo $(ARGS)

# The checks that every change needs.
test:
	scripts/needs test
	scripts/test

# All other checks: tests in kernels of their own, whole machines, packages.
test-all:
	scripts/needs test
	scripts/test rest

.PHONY: test-radios
# Wi-Fi on real stacks: access points and cards of a kernel in virtual time; our air beside them.
test-radios:
	scripts/needs test
	scripts/uml-kernel
	scripts/with-cargo build --locked --bins
	scripts/with-cargo test --locked -p hawser --test radio -- --nocapture --test-threads=1
	scripts/with-cargo test --locked -p hawser-lab --test uml
	target/debug/hawser-lab conform --air

# The program for people's machines, with its units and its debug information in a file of its
# own: out/package
package:
	scripts/needs run
	scripts/package

# A package for Debian: out/deb
deb:
	scripts/needs run
	scripts/deb

# A package for Fedora, openSUSE and their kin: out/rpm
rpm:
	scripts/needs run
	scripts/needs rpm
	scripts/rpm

# The program without a need for any library, for x86-64 and ARM64: out/static. Packages of it for
# routers with OpenWrt: out/openwrt
.PHONY: static openwrt
static:
	scripts/needs run
	scripts/needs static
	scripts/static
openwrt:
	scripts/needs run
	scripts/needs static
	scripts/openwrt

# A release, put together and signed, in out/release; publishes nothing (docs/manual/releases.md).
.PHONY: release
release:
	scripts/needs run
	scripts/needs release
	scripts/release $(ARGS)

# The manual as a book, for a browser or a web server: out/book
.PHONY: book
book:
	scripts/needs run
	scripts/book

# Fuzzes one target, or all of them, for so many minutes each, and keeps what was found in
# fuzz/corpus: make fuzz TARGET=data MINUTES=5, make fuzz-all MINUTES=10
TARGET ?= data
MINUTES ?= 1
fuzz:
	scripts/fuzz $(MINUTES) $(TARGET)

fuzz-all:
	scripts/fuzz $(MINUTES)

# Writes the hand-made seeds of the fuzz corpus again.
corpus:
	scripts/with-cargo run --locked -p hawser-fuzz --example seeds

# Both targets install what they need on a Debian machine (see scripts/needs).

.PHONY: demo test fuzz corpus

demo:
	scripts/needs run
	scripts/with-cargo build --release --locked
	target/release/hawser demo --out out/demo

test:
	scripts/needs test
	scripts/test

# One fuzz target for a minute, with cargo-fuzz and a nightly toolchain: make fuzz TARGET=data
TARGET ?= data
fuzz:
	scripts/with-cargo +nightly fuzz run $(TARGET) -- -max_total_time=60

# Writes the hand-made seeds of the fuzz corpus again.
corpus:
	scripts/with-cargo run --locked -p hawser-fuzz --example seeds

# Zonal: what one types. Each target installs what is missing (Debian's packages when root; Rust
# itself comes from rustup) and says what it does.

.PHONY: help run test test-long bench reproduce check fix build clean

help:
	@echo "make run        build, bring up a cell on this machine, mount it, show it at work"
	@echo "make test       format, tidy, unit tests, and the POSIX suites on a real cell"
	@echo "make test-long  the same in full size"
	@echo "make bench      fsload on a local disk, the null file system, a cell, and peers"
	@echo "make reproduce  published figures on a testbed (ONLY=fig9 for one): data, plots, page"
	@echo "make check      format, lints and tidy only"
	@echo "make fix        put right what tools can: format, lints, generated pages"
	@echo "make build      the release binary, target/release/zonal"

run:
	@tests/demo

test:
	@tests/all

test-long:
	@tests/all --long

bench:
	@bench/run

reproduce:
	@bench/reproduce/run $(ONLY)

check:
	@tests/lint

fix:
	@tests/fix

build:
	cargo build --release --package zonal

clean:
	cargo clean

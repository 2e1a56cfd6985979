# What the README's commands do; the build itself is CMake's (CMakeLists.txt, CMakePresets.json).
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
MAKEFLAGS += --no-print-directory
MODEL = models/tiny
PROMPT = Question: A farmer has 12 hens. Each hen lays 3 eggs a day. How many eggs does he get in a week?

.PHONY: build demo tests test test-long bench install format clean

build:
	@tools/setup
	@cmake --preset release -DCOT_TESTS=OFF >/dev/null
	@cmake --build build/release --target coterie-cli -j $(JOBS)

demo: build
	build/release/coterie run $(MODEL) -p "$$(printf '%s\nAnswer:' "$(PROMPT)")" --ranks 4 --max-tokens 80 --stats

tests:
	@tools/setup tests
	@cmake --preset release -DCOT_TESTS=ON >/dev/null
	@cmake --build build/release -j $(JOBS)

test: tests
	ctest --test-dir build/release -j $(JOBS) --output-on-failure --no-tests=error -LE long

test-long: tests
	ctest --test-dir build/release -j $(JOBS) --output-on-failure --no-tests=error

bench: build
	@cmake --build build/release --target bench_kernels -j $(JOBS)
	build/release/bench/bench_kernels
	build/release/coterie bench roof
	build/release/coterie bench model

install:
	@tools/setup
	@cmake --preset release -DCOT_TESTS=OFF -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --build build/release -j $(JOBS)
	DESTDIR=$(DESTDIR) cmake --install build/release

format:
	clang-format-14 -i $$(git ls-files '*.c' '*.h' '*.cpp')

clean:
	rm -rf build

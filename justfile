# The commands that .ci/run runs, by name: without `just`, type what a recipe says.

# lists the recipes
default:
    @just --list

# once per clone: environment, lock file filter, commit hooks
setup:
    scripts/setup

# ruff, clang-format, mojo format; `just lint --fix` changes files
lint *arguments:
    scripts/lint {{arguments}}

# mypy
types:
    scripts/types

# compiles all kernels of the op tables into the cache
prebuild *arguments:
    uv run torch-mojo-backend prebuild {{arguments}}

test *arguments:
    uv run pytest {{arguments}}

# compiles every kernel for GPUs, without one
check-gpu *arguments:
    uv run --directory tools/gpu_check python -m gpu_check {{arguments}}

bench *arguments:
    uv run python benchmarks/run.py {{arguments}}

# sdists and wheels of all packages, in dist/
build:
    uv build --all-packages

# wheels of a release, with compiled kernels, core and shim
wheels *arguments:
    uv run python scripts/wheels.py {{arguments}}

# all that a change must pass
ci:
    .ci/run

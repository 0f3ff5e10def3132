# Each target is one line into Python: `make TARGET` is `python3 -m course.site TARGET`.
# PYTHON=/path/to/python  use this interpreter as it is; create and install nothing (for machines without a network)
# ARGS="..."              more arguments, e.g. make test ARGS="-k decode"
# COURSE=/path/to/folder  an instructor's course folder, for make assignments (default: ~/from-mha-to-mla-course)
PYTHON =
ARGS =

course = @"$(or $(PYTHON),python3)" -m course.site $(if $(PYTHON),--as-is)

.PHONY: book serve test lab notebooks check-notebooks assignments measure gpu-test clean
.NOTPARALLEL:

book: ; $(course) book $(ARGS)
serve: ; $(course) serve $(ARGS)
test: ; $(course) test $(ARGS)
lab: ; $(course) lab $(ARGS)
notebooks: ; $(course) notebooks $(ARGS)
check-notebooks: ; $(course) check-notebooks $(ARGS)
assignments: ; $(course) assignments $(ARGS)
measure: ; $(course) measure $(ARGS)
gpu-test: ; $(course) gpu-test $(ARGS)
clean: ; $(course) clean

"""Exercises that grade themselves: tasks, the properties that right answers have, and wrong versions that prove the properties.

student      what a notebook imports: `check` and ``%%change``
tasks        a property, a task, an assignment, the report of a check
assignments  the tasks of each chapter
properties   what is true of every right answer, by subject
mutants      wrong versions of shipped code, each with its story
answers      a learner's answer as a property sees it, and what a call did
judge        comparisons whose messages teach
draw         fresh input from a seed
release      a source with its values drawn; the same without its solutions
packages     copies of our packages with definitions replaced
"""

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
packages     definitions of our files, and copies of our packages with some replaced
source       brings a source in line with its tasks
guide        what the book tells of all this

and the instructor's side, ``python -m course.grading`` (`__main__`), in the order in which it is used

handout      source and release in the course folder      folder     where a class's files lie, and its private seed
collect      submissions from a folder or a zip           rebuild    a submission in the shape of its release
autograde    a class, over the cores there are            grade      the verdict on one submission
remote       the grader's side of an answering process    answering  that process           wire  what they say to each other
confine      limits and fences of that process            gradebook  nbgrader and ours      report  CSV files, status
"""

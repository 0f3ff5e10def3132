"""Named properties of right answers, by what they are about. Each says in its message what is wrong and where."""

import unittest

from textkit import slugify


class SlugTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slugify("Hello World"), "hello-world")

    def test_runs_of_other_characters_are_one_separator(self):
        self.assertEqual(slugify("a  &  b"), "a-b")

    def test_accents(self):
        self.assertEqual(slugify("Crème brûlée"), "creme-brulee")


if __name__ == "__main__":
    unittest.main()

import unittest

from lru import Cache


class CacheTest(unittest.TestCase):
    def test_reading_counts_as_use(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        self.assertEqual(cache.keys(), ["a", "c"])

    def test_writing_again_drops_nothing(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("a", 3)
        self.assertEqual(sorted(cache.keys()), ["a", "b"])


if __name__ == "__main__":
    unittest.main()

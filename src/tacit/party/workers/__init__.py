"""A party on several worker processes that train as one."""

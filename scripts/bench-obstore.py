"""Uploads or downloads files with obstore, for `scripts/bench`, which runs it in its virtual environment.

    bench-obstore.py upload|download ENDPOINT PREFIX PATH CONCURRENCY PART_MIB

PATH is a file or a directory. CONCURRENCY is the number of files, and of parts of each file, that are under way at
once; obstore's own defaults for the parts of a file are 12 and 5 MiB.
"""

import asyncio
import os
import sys
from pathlib import Path

import obstore
from obstore.store import S3Store


async def upload(store, prefix, path, concurrency, part_bytes):
    files = [path] if path.is_file() else sorted(path.iterdir())
    waiting = iter(files)

    async def work():
        for file in waiting:
            with open(file, "rb") as opened:
                await obstore.put_async(store, f"{prefix}/{file.name}", opened, chunk_size=part_bytes,
                                        max_concurrency=concurrency)

    await asyncio.gather(*[work() for _ in range(min(concurrency, len(files)))])


async def download(store, prefix, path, concurrency, part_bytes):
    ranges = [(found["path"], start, min(start + part_bytes, found["size"]))
              for page in obstore.list(store, f"{prefix}/") for found in page
              for start in range(0, found["size"], part_bytes)]
    waiting = iter(ranges)

    async def work():
        for key, start, end in waiting:
            body = await obstore.get_range_async(store, key, start=start, end=end)
            descriptor = os.open(path / Path(key).name, os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(descriptor, body, start)
            os.close(descriptor)

    await asyncio.gather(*[work() for _ in range(concurrency)])


def main():
    direction, endpoint, prefix, path, concurrency, part_mib = sys.argv[1:]
    options = {"timeout": "600s", "allow_http": True}
    store = S3Store("bench", endpoint=endpoint, region="us-east-1", virtual_hosted_style_request=False,
                    client_options=options)
    act = upload if direction == "upload" else download
    asyncio.run(act(store, prefix, Path(path), int(concurrency), int(part_mib) << 20))
    # Its threads may call into an interpreter that is ending, which then aborts.
    os._exit(0)


if __name__ == "__main__":
    main()

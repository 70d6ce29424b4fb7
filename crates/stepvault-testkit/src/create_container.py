"""Creates a container in Azurite: create_container.py ENDPOINT ACCOUNT KEY NAME [public]."""

import base64
import datetime
import hashlib
import hmac
import sys
import urllib.request

endpoint, account, key, name, *is_public = sys.argv[1:]
date = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
# Those without credentials may then list and read.
access = {"x-ms-blob-public-access": "container"} if is_public else {}
own = access | {"x-ms-date": date, "x-ms-version": "2021-08-06"}
signed = "".join(f"{header}:{value}\n" for header, value in own.items())
text = "PUT\n" + "\n" * 11 + f"{signed}/{account}/{account}/{name}\nrestype:container"
signature = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
headers = own | {"Authorization": f"SharedKey {account}:{signature}", "Content-Length": "0"}
url = f"{endpoint}/{account}/{name}?restype=container"
urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))

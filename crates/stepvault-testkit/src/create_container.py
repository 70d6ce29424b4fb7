"""Creates a container in Azurite: create_container.py ENDPOINT ACCOUNT KEY NAME."""

import base64
import datetime
import hashlib
import hmac
import sys
import urllib.request

endpoint, account, key, name = sys.argv[1:]
date = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
text = (
    "PUT\n" + "\n" * 11 + f"x-ms-date:{date}\nx-ms-version:2021-08-06\n/{account}/{account}/{name}\nrestype:container"
)
signature = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
headers = {
    "x-ms-date": date,
    "x-ms-version": "2021-08-06",
    "Authorization": f"SharedKey {account}:{signature}",
    "Content-Length": "0",
}
url = f"{endpoint}/{account}/{name}?restype=container"
urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))

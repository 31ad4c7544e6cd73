"""Talks to the hub through huggingface_hub: the files of a model, their content from an offset on, and what its errors mean.

huggingface_hub reads ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_TOKEN_PATH``, ``HTTPS_PROXY`` and ``SSL_CERT_FILE``. Its own ``hf_hub_download``
begins a file anew after a killed process (each one has a temporary file with a random name, since its pull request 4228), so files are read
here by range over its session. Range requests are plain HTTP: the hub serves repositories kept in Xet that way too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, get_session, get_token, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from dflash_controller.fetch.failures import FetchError
from dflash_controller.fetch.selection import File, Wanted, is_digest, is_safe
from dflash_controller.model.fetch_report import FetchReason

TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""The base of all errors of the HTTP client that huggingface_hub uses, whichever it is (httpx before 2.0, httpx2 since)."""
SEGMENT = 16 * 1024**3
"""Bytes of one request. The hub's CDN answers at most 50 GB at once."""
READ_TIMEOUT_S = 30.0
TRANSIENT = (408, 416, 425, 429, 500, 502, 503, 504, 520, 522, 524)
_STATUS = {
    407: "the proxy wants a user: set HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT in spec.engine.env",
    451: "for legal reasons it is not served here: set HF_ENDPOINT to another hub, or put the weights into the storage yourself",
}
"""What to do about further answers."""
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+@")
SECRET = "set spec.huggingFace.tokenSecretRef to a Secret with a token that may read it"


class TransientError(Exception):
    """The hub could not be reached or asks to wait; ``retry_after`` in seconds if it says for how long."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Hub:
    """A hub, as the environment names it. Every method raises FetchError for what a human must fix, and TransientError."""

    def __init__(self) -> None:
        self.endpoint: str = _without_credentials(constants.ENDPOINT)
        self.offline: bool = constants.HF_HUB_OFFLINE

    def files(self, wanted: Wanted) -> list[File]:
        """Returns all files of the model with sizes and hashes."""
        _check_environment()
        with self._errors(wanted):
            try:
                info = HfApi().model_info(wanted.model, revision=wanted.commit, files_metadata=True, timeout=READ_TIMEOUT_S)
            except HfHubHTTPError:
                raise
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise TransientError(f"{self.endpoint} answers something else than a list of files: perhaps the page of a proxy") from error
        if info.sha and info.sha != wanted.commit:
            raise FetchError(
                FetchReason.REVISION_NOT_FOUND,
                f"{self.endpoint} answers with commit {info.sha} for {wanted}. Set the revision to a commit that the hub has",
            )
        found = []
        for sibling in info.siblings or ():
            if not is_safe(sibling.rfilename):
                raise FetchError(FetchReason.UNEXPECTED, f"{wanted} has a file with the unsafe path {sibling.rfilename!r}: not fetched")
            size: Any = sibling.lfs.size if sibling.lfs else sibling.size
            digest: Any = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
            if size is None or not digest:
                size, digest = self._head(wanted, sibling.rfilename)
            found.append(self._file(wanted, sibling.rfilename, size, digest))
        if not found:
            raise FetchError(FetchReason.MODEL_NOT_FOUND, f"{wanted} has no files at {self.endpoint}. Check the model's name")
        return found

    def _file(self, wanted: Wanted, path: str, size: Any, digest: Any) -> File:
        """Returns a file as the hub lists it. Raises FetchError if its size or hash is none: both decide what is written where."""
        if not isinstance(size, int) or size < 0 or not is_digest(digest):
            raise FetchError(
                FetchReason.HASH_MISMATCH,
                f"{self.endpoint} lists {path} of {wanted} with the size {size!r:.80} and the hash {digest!r:.80}, which are none, so it "
                "cannot be verified. Set HF_ENDPOINT to another hub, or put the files into the storage yourself",
            )
        return File(path, size, sha256=digest) if len(digest) == 64 else File(path, size, blob=digest)

    def _head(self, wanted: Wanted, path: str) -> tuple[int, str]:
        """Asks for one file: some mirrors list files without sizes."""
        with self._errors(wanted):
            found = HfApi().get_hf_file_metadata(url=hf_hub_url(wanted.model, path, revision=wanted.commit), timeout=READ_TIMEOUT_S)
        if found.size is None or not is_digest(found.etag):
            raise FetchError(
                FetchReason.HASH_MISMATCH,
                f"{self.endpoint} tells no size and hash of {path} of {wanted}, so it cannot be verified. Set HF_ENDPOINT to a hub "
                "that does, or put the files into the storage yourself",
            )
        return found.size, str(found.etag)

    @contextmanager
    def content(self, wanted: Wanted, file: File, offset: int) -> Iterator[tuple[int, int, Iterator[bytes]]]:
        """Gives the offset at which the answer begins, the one at which it has to end, and what arrives, as it arrives.

        It begins at 0 if the server ignores ranges. An answer of another length than the file's, as the page of a proxy, is a
        TransientError before anything of it is read.
        """
        last = min(file.size, offset + SEGMENT) - 1
        headers = build_hf_headers() | {"Range": f"bytes={offset}-{last}", "Accept-Encoding": "identity"}
        with (
            self._errors(wanted),
            get_session().stream(
                "GET", hf_hub_url(wanted.model, file.path, revision=wanted.commit), headers=headers, timeout=READ_TIMEOUT_S
            ) as response,
        ):
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            partial = response.status_code == 206
            told = _length(response.headers, partial)
            if told is not None and told != file.size:
                kind = response.headers.get("Content-Type", "no type").partition(";")[0]
                raise TransientError(
                    f"{response.url.host} answers {told} bytes ({kind}) for {file.path}, which has {file.size}: perhaps the page of a proxy"
                )
            yield (offset, last + 1, response.iter_bytes()) if partial else (0, file.size, response.iter_bytes())

    @contextmanager
    def _errors(self, wanted: Wanted) -> Iterator[None]:
        try:
            yield
        except HfHubHTTPError as error:
            raise self._meaning(wanted, error) from error
        except (TRANSPORT_ERROR, TimeoutError, ConnectionError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise FetchError(
                    FetchReason.HUB_UNREACHABLE,
                    f"The certificate of {self.endpoint}, or of a proxy before it, cannot be verified: {_one_line(error)}. Set "
                    "SSL_CERT_FILE in spec.engine.env to a file with the certificates of your authority",
                ) from error
            raise TransientError(f"{type(error).__name__}: {_one_line(error)}") from error

    def _meaning(self, wanted: Wanted, error: HfHubHTTPError) -> Exception:
        status = error.response.status_code
        page = f"{self.endpoint}/{wanted.model}"
        token = get_token()
        if status in TRANSIENT:
            return TransientError(f"{self.endpoint} answers {status}", _seconds(error.response.headers.get("Retry-After")))
        if isinstance(error, GatedRepoError):
            account = "with the account of the token" if token else "and " + SECRET
            return FetchError(
                FetchReason.GATED, f"{wanted.model} is gated ({status}): accept its terms at {page} {account}. The token needs read access"
            )
        if isinstance(error, RevisionNotFoundError):
            return FetchError(
                FetchReason.REVISION_NOT_FOUND,
                f"{wanted.model} has no commit {wanted.commit} at {self.endpoint} ({status}). See {page}/commits/main and set the revision",
            )
        if status == 401 and token:
            return FetchError(
                FetchReason.UNAUTHORIZED,
                f"{self.endpoint} refuses the token for {wanted.model} (401): it is expired, revoked or of another hub, or the model "
                "does not exist. Put a valid token into the Secret of spec.huggingFace.tokenSecretRef, and check the model's name",
            )
        if status == 401:
            return FetchError(
                FetchReason.UNAUTHORIZED,
                f"{wanted.model} is private or does not exist at {self.endpoint} (401, without a token): check the name, or {SECRET}",
            )
        if status == 403 and not token:
            host = urlsplit(str(error.response.url)).hostname
            return FetchError(
                FetchReason.GATED,
                f"{host} refuses {wanted.model} (403, without a token): a proxy or mirror that may not serve it, or {SECRET}",
            )
        if status == 403:
            return FetchError(
                FetchReason.GATED,
                f"The token may not read {wanted.model} (403): give it the right to read gated and private repositories, and accept "
                f"the terms at {page}",
            )
        if isinstance(error, EntryNotFoundError):
            return FetchError(
                FetchReason.REVISION_NOT_FOUND,
                f"{self.endpoint} lists a file of {wanted} and does not have it ({_one_line(error)}): a mirror that is not complete. "
                "Wait for it, or set HF_ENDPOINT to another hub",
            )
        if isinstance(error, RepositoryNotFoundError) or status == 404:
            return FetchError(
                FetchReason.MODEL_NOT_FOUND, f"{wanted.model} does not exist at {self.endpoint} ({status}): check the name, or {SECRET}"
            )
        remedy = _STATUS.get(status, "look at the hub, or set HF_ENDPOINT to another one")
        return FetchError(FetchReason.UNEXPECTED, f"{self.endpoint} answers {status} for {wanted}: {remedy} ({_one_line(error)})")


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _check_environment() -> None:
    """Raises FetchError for an environment with which no request can be made, however often it is tried."""
    scheme, host = urlsplit(constants.ENDPOINT)[:2]
    if scheme not in ("http", "https") or not host:
        raise FetchError(
            FetchReason.HUB_UNREACHABLE,
            f"HF_ENDPOINT is {_without_credentials(constants.ENDPOINT)!r}, which is no URL. Write it as https://HOST in spec.engine.env",
        )
    file = os.environ.get("SSL_CERT_FILE")
    if file and not Path(file).is_file():
        raise FetchError(
            FetchReason.HUB_UNREACHABLE,
            f"SSL_CERT_FILE names {file}, which is no file. Mount it, or take the variable out of spec.engine.env",
        )


def _length(headers: Any, partial: bool) -> int | None:
    """Returns how long the whole file is by the headers of an answer; None if they do not tell. An encoded answer has another length."""
    if headers.get("Content-Encoding", "identity") != "identity":
        return None
    text = headers.get("Content-Range", "").rpartition("/")[2] if partial else headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _without_credentials(text: str) -> str:
    return _CREDENTIALS.sub("", text)


def _one_line(error: BaseException) -> str:
    return _without_credentials(" ".join(str(error).split()))

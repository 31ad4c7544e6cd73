"""Asks the model hub in the background, as reconciles request it. No method waits."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from dflash_controller.model.hub import NO_QUESTIONS, HubAnswer, HubKnowledge, ModelFacts, ModelQuestion, ModelQuestions, why
from dflash_controller.model.measurement import Error
from dflash_controller.model.snapshot import Key

RECENT_S = 2.0
"""An answer that is at most so old counts as asked for a change that is seen now. A fleet that is created at once asks once."""
LASTS = 3
"""Failures in a row before a failure takes the place of a good answer in the status."""
RETRY_S = 15.0
"""Time from the first failure to the next attempt; it doubles with each failure, up to the time between two regular questions."""
MOST_KEPT = 1000
"""Answers kept in memory."""

_log = logging.getLogger(__name__)


class Hub(Protocol):
    """``observe.hub.client.HubClient``."""

    async def ask(self, question: ModelQuestion) -> HubAnswer: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Subject:
    """One question that somebody wants answered."""

    keys: set[Key] = field(default_factory=set)
    failures: int = 0
    again: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has to be asked at once."""
    task: asyncio.Task[None] | None = None


class HubReader:
    """Asks each question once for all deployments that want it: again at most every ``refresh_s`` while somebody does.

    ``changed(key)`` is called on the event loop when an answer arrives that may change a deployment's plan. Without ``hub`` nothing is
    asked.
    """

    def __init__(
        self,
        hub: Hub | None,
        endpoint: str | None,
        changed: Callable[[Key], None],
        *,
        refresh_s: float,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._endpoint = endpoint if hub is not None else None
        self._changed = changed
        self._refresh_s = refresh_s
        self._retry_s = min(retry_s, refresh_s)
        self._clock = clock
        self._wanted: dict[Key, ModelQuestions] = {}
        self._since: dict[Key, float] = {}
        self._subjects: dict[ModelQuestion, _Subject] = {}
        self._shown: dict[ModelQuestion, HubAnswer] = {}
        self._latest: dict[ModelQuestion, tuple[float, HubAnswer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def knowledge(self, key: Key) -> HubKnowledge:
        """Returns what is known, as this deployment sees it. It is a view: use it before the next answer arrives."""
        wanted = self._wanted.get(key, NO_QUESTIONS)
        return HubKnowledge(self._endpoint, self._shown, self._latest, wanted.intent, self._since.get(key, 0.0))

    def want(self, key: Key, questions: ModelQuestions) -> None:
        """Takes what the deployment wants to know from now on, in place of what it wanted before."""
        before = self._wanted.get(key, NO_QUESTIONS)
        if self._hub is None or self._closed or questions == before:
            return
        now = self._clock()
        if questions.intent != before.intent:
            self._since[key] = now - RECENT_S
        wanted, asked = {*questions.watched, *questions.pending}, {*before.watched, *before.pending}
        for question in asked - wanted:
            subject = self._subjects[question]
            subject.keys.discard(key)
            if not subject.keys:
                subject.again.set()
            if not subject.keys and subject.task is None:
                del self._subjects[question]
        if wanted:
            self._wanted[key] = questions
        else:
            self._wanted.pop(key, None)
            self._since.pop(key, None)
        for question in wanted:
            subject = self._subjects.setdefault(question, _Subject())
            subject.keys.add(key)
        for question in questions.pending:
            if self.knowledge(key).resolved(question, questions.intent or "") is None:
                self._subjects[question].again.set()
        for question in wanted:
            self._start(question)
        if questions.pending and questions.intent != before.intent and self._answered(key, questions):
            self._changed(key)

    def forget(self, key: Key) -> None:
        """Drops everything about a deployment that was deleted."""
        self.want(key, NO_QUESTIONS)

    async def run(self) -> None:
        """Waits until cancelled, then ends every question. It runs in the background while this process leads."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancels every question, asks no more, and closes the connections."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._hub is not None:
            await self._hub.close()

    def _answered(self, key: Key, questions: ModelQuestions) -> bool:
        known = self.knowledge(key)
        return all(known.resolved(question, questions.intent or "") is not None for question in questions.pending)

    def _start(self, question: ModelQuestion) -> None:
        subject = self._subjects[question]
        known = self._latest.get(question)
        settled = question.pinned and known is not None and isinstance(known[1], ModelFacts)
        if self._hub is None or subject.task is not None or settled:
            return
        subject.task = asyncio.create_task(self._work(self._hub, question, subject), name=f"hub: {question.model}@{question.ref}")
        self._tasks.add(subject.task)
        subject.task.add_done_callback(self._tasks.discard)

    async def _work(self, hub: Hub, question: ModelQuestion, subject: _Subject) -> None:
        """Asks until nobody wants to know any more, or the answer can never change."""
        known = self._latest.get(question)
        if known is not None and not subject.again.is_set():
            await self._pause(subject, max(0.0, known[0] + self._refresh_s - self._clock()))
        while subject.keys:
            subject.again.clear()
            asked_at = self._clock()
            try:
                answer = await hub.ask(question)
            except Exception:
                _log.exception("asking the hub for %s at %s failed", question.model, question.ref)
                answer = Error("the question failed because of an internal error; see the operator's log")
            self._take(question, subject, asked_at, answer)
            if question.pinned and isinstance(answer, ModelFacts):
                break
            await self._pause(subject, self._wait_s(subject))
        subject.task = None
        if not subject.keys and self._subjects.get(question) is subject:
            del self._subjects[question]

    def _take(self, question: ModelQuestion, subject: _Subject, asked_at: float, answer: HubAnswer) -> None:
        good = isinstance(answer, ModelFacts)
        subject.failures = 0 if good else subject.failures + 1
        if subject.failures == 1 and not isinstance(answer, ModelFacts):
            _log.warning("%s at %s: %s", question.model, question.ref, why(answer))
        before = self._shown.get(question)
        if good or not isinstance(before, ModelFacts) or subject.failures >= LASTS:
            self._shown[question] = answer
        self._latest.pop(question, None)
        self._latest[question] = asked_at, answer
        self._forget_oldest()
        moved = self._shown[question] != before
        for key in tuple(subject.keys):
            if moved or question in self._wanted[key].pending:
                self._changed(key)

    def _forget_oldest(self) -> None:
        for question in [found for found in self._latest if found not in self._subjects][: max(0, len(self._latest) - MOST_KEPT)]:
            del self._latest[question]
            self._shown.pop(question, None)

    def _wait_s(self, subject: _Subject) -> float:
        if not subject.failures:
            return self._refresh_s * random.uniform(0.9, 1.1)
        return float(min(self._refresh_s, self._retry_s * 2 ** min(subject.failures - 1, 16)))

    @staticmethod
    async def _pause(subject: _Subject, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await subject.again.wait()

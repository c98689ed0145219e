"""Every public name opens, and nothing heavy comes with the package itself."""

import pytest

import gradwatch


@pytest.mark.parametrize("name", gradwatch.__all__)
def test_the_door_opens(name: str) -> None:
    assert getattr(gradwatch, name) is not None
    assert name in dir(gradwatch)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wach'"):
        gradwatch.wach  # noqa: B018


def test_there_are_not_too_many_doors() -> None:
    assert len(gradwatch.__all__) <= 18

"""The wheel `aiozkqueue-zookeeper`: `build` makes it. The other files of this folder are its source tree."""

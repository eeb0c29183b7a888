"""Image embeddings with a ResNet in evaluation mode: batch statistics are read and do not come back; uint8 images, test-time
flips, normalised embeddings."""

import flax.linen as nn, jax, jax.numpy as jnp

B = 128


class Bottleneck(nn.Module):
    width: int
    stride: int = 1

    @nn.compact
    def __call__(self, x):
        norm = lambda name: nn.BatchNorm(use_running_average=True, name=name)
        y = nn.relu(norm("bn1")(nn.Conv(self.width, (1, 1), use_bias=False, name="conv1")(x)))
        y = nn.relu(norm("bn2")(nn.Conv(self.width, (3, 3), self.stride, use_bias=False, name="conv2")(y)))
        y = norm("bn3")(nn.Conv(4 * self.width, (1, 1), use_bias=False, name="conv3")(y))
        if x.shape != y.shape:
            x = norm("bn_proj")(nn.Conv(4 * self.width, (1, 1), self.stride, use_bias=False, name="proj")(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(64, (7, 7), 2, use_bias=False, name="stem")(x)
        x = nn.max_pool(nn.relu(nn.BatchNorm(use_running_average=True, name="bn_stem")(x)), (3, 3), (2, 2), "SAME")
        for i, (width, stride) in enumerate(((64, 1), (128, 2), (256, 2), (512, 2))):
            x = Bottleneck(width, stride, name=f"stage{i}_a")(x)
            x = Bottleneck(width, name=f"stage{i}_b")(x)
        return nn.Dense(512, name="embed")(x.mean((1, 2)))


def make():
    net = ResNet()
    images = jax.ShapeDtypeStruct((B, 224, 224, 3), jnp.uint8)
    variables = jax.eval_shape(lambda k: net.init(k, jnp.zeros((1, 224, 224, 3))), jax.random.PRNGKey(0))

    def embed(variables, images, mean, std):
        x = (images.astype(jnp.float32) / 255 - mean) / std
        z = net.apply(variables, x) + net.apply(variables, x[:, :, ::-1])
        return z / jnp.linalg.norm(z, axis=-1, keepdims=True)

    three = jax.ShapeDtypeStruct((3,), jnp.float32)
    return jax.jit(embed), (variables, images, three, three)

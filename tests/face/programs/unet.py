"""A U-Net of two levels that marks the bright bar of an image."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from start import images, weights


def double_conv(in_channels, out_channels):
    layers = []
    for channels in (in_channels, out_channels):
        layers += [nn.Conv2d(channels, out_channels, kernel_size=3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc = double_conv(1, 8)
        self.down = nn.Sequential(nn.MaxPool2d(2), double_conv(8, 16))
        self.up = nn.ConvTranspose2d(16, 8, kernel_size=2, stride=2)
        self.conv = double_conv(16, 8)
        self.outc = nn.Conv2d(8, 1, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.up(self.down(x1))
        dy, dx = x1.size()[2] - x2.size()[2], x1.size()[3] - x2.size()[3]
        x2 = F.pad(x2, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.outc(self.conv(torch.cat([x1, x2], dim=1)))


def dice_loss(pred, target, smooth=1.0):
    pred = torch.sigmoid(pred)
    inter = 2 * (pred * target).sum(dim=(-1, -2))
    return 1 - ((inter + smooth) / (pred.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2)) + smooth)).mean()


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = UNet().to(device=device)
net.load_state_dict(weights(net, torch.from_numpy))
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9, foreach=True)
criterion = nn.BCEWithLogitsLoss()
x = torch.from_numpy(images(80, size=17)[0])
masks = (x > 0.45).float()
losses = []
for step in range(20):
    image = x[step * 4 : step * 4 + 4].to(device=device, dtype=torch.float32)
    mask = masks[step * 4 : step * 4 + 4].to(device=device)
    pred = net(image)
    loss = criterion(pred, mask) + dice_loss(pred, mask)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())

"""A small residual network with SGD, warm-up and steps of the learning rate, and a checkpoint in memory."""

import io

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from start import images, weights


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super(BasicBlock, self).__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            conv = nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(planes))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    def __init__(self, num_classes=10):
        super(ResNet, self).__init__()
        self.conv1 = nn.Conv2d(3, 8, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(*[BasicBlock(8, 8)])
        self.layer2 = nn.Sequential(*[BasicBlock(8, 16, stride=2)])
        self.linear = nn.Linear(16, num_classes)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.avg_pool2d(self.layer2(self.layer1(out)), 8)
        return self.linear(out.view(out.size(0), -1))


device = "cuda" if torch.cuda.is_available() else "cpu"
net = ResNet().to(device)
net.load_state_dict(weights(net, torch.from_numpy))
if device == "cuda":
    net = torch.nn.DataParallel(net)
    torch.backends.cudnn.benchmark = True
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8, 15], gamma=0.2)
x, y = images(160, channels=3)
losses, correct, total = [], 0, 0
net.train()
for epoch in range(20):
    inputs, targets = torch.tensor(x[epoch * 8 : epoch * 8 + 8]), torch.tensor(y[epoch * 8 : epoch * 8 + 8])
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer.zero_grad()
    outputs = net(inputs)
    loss = criterion(outputs, targets)
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    _, predicted = outputs.max(1)
    total += targets.size(0)
    correct += predicted.eq(targets).sum().item()
file = io.BytesIO()
torch.save({"net": net.state_dict(), "acc": correct / total, "epoch": epoch}, file)
file.seek(0)
checkpoint = torch.load(file)
net.load_state_dict(checkpoint["net"])
print("lr", scheduler.get_last_lr(), "epoch", checkpoint["epoch"])

"""A small convolutional network that reads digits."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from start import images, weights
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.bn = nn.BatchNorm2d(16)
        self.fc1 = nn.Linear(16 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.bn(self.conv2(x)), inplace=True), 2)
        x = x.view(x.size(0), -1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


no_cuda = False
use_cuda = not no_cuda and torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
kwargs = {"num_workers": 1, "pin_memory": True} if use_cuda else {}
torch.manual_seed(1)

x, y = images(320)
train_set = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
train_loader = DataLoader(train_set, batch_size=16, shuffle=False, **kwargs)
model = Net().to(device)
model.load_state_dict(weights(model, torch.from_numpy))
optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

losses = []
model.train()
for data, target in train_loader:
    data, target = data.to(device), target.to(device)
    optimizer.zero_grad()
    output = model(data)
    loss = F.nll_loss(output, target)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

model.eval()
correct = 0
with torch.no_grad():
    for data, target in train_loader:
        pred = model(data.to(device)).max(1, keepdim=True)[1]
        correct += pred.eq(target.view_as(pred)).sum().item()
print("accuracy {:.1f} %".format(100.0 * correct / len(train_set)))

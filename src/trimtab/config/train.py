from trimtab.train.settings import TrainSettings
